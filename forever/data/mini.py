"""`mini`: an embedded benchmark of five small tasks in plain English, made by code from a seed.

Every task looks at the same small world: a person does something with a thing, somewhere, at some
time, and has an opinion about it. So the inputs of all tasks look alike and only the instruction
tells them apart: what is learned for one task is overwritten by the next, which is what a
continual-learning benchmark must show. The backbone `tiny` (forever/models/tiny) was pre-trained on
other questions about this world; it has never seen these five.

    sentiment    positive | negative                  of the adjective
    topic        food | music                         of the thing
    past_tense   the sentence, rewritten              generation, ROUGE-L
    place        indoors | outdoors                   of the place
    happened     yes | no                             of the verb

The world has sport and travel too, which the other tasks speak of. A topic task with all four was
learned alone but stayed at chance in joint training, which then was no upper bound.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from forever.data.tasks import Benchmark, Example, Metric, Task

NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ines", "Jack",
    "Karim", "Laura", "Maria", "Noah", "Olga", "Peter", "Rosa", "Sam", "Tom", "Yuki",
)  # fmt: skip

POSITIVE = (
    "wonderful", "lovely", "great", "excellent", "superb", "brilliant",
    "delightful", "fantastic", "amazing", "perfect", "splendid", "charming",
)  # fmt: skip
NEGATIVE = (
    "awful", "terrible", "boring", "horrible", "dreadful", "poor",
    "dull", "disappointing", "unpleasant", "miserable", "mediocre", "ugly",
)  # fmt: skip

# Verbs as (present, past). The thing decides the topic; the shared verbs say nothing about it.
SHARED_VERBS = (
    ("describes", "described"), ("remembers", "remembered"), ("plans", "planned"),
    ("mentions", "mentioned"), ("chooses", "chose"), ("shares", "shared"),
    ("finishes", "finished"), ("praises", "praised"),
)  # fmt: skip
VERBS = {
    "food": (
        ("cooks", "cooked"), ("eats", "ate"), ("orders", "ordered"), ("serves", "served"),
        ("tastes", "tasted"),
    ),
    "music": (
        ("plays", "played"), ("sings", "sang"), ("hears", "heard"), ("records", "recorded"),
        ("writes", "wrote"),
    ),
    "sport": (
        ("wins", "won"), ("watches", "watched"), ("runs", "ran"), ("loses", "lost"),
        ("referees", "refereed"),
    ),
    "travel": (
        ("takes", "took"), ("books", "booked"), ("begins", "began"), ("films", "filmed"),
        ("joins", "joined"),
    ),
}  # fmt: skip
THINGS = {
    "food": (
        "soup", "cake", "pizza", "salad", "curry", "stew", "sandwich", "pie", "omelette",
        "pancake",
    ),
    "music": (
        "song", "melody", "ballad", "duet", "symphony", "tune", "anthem", "solo", "concerto",
        "waltz",
    ),
    "sport": (
        "match", "race", "tournament", "sprint", "relay", "marathon", "final", "regatta", "derby",
        "contest",
    ),
    "travel": (
        "trip", "flight", "cruise", "journey", "tour", "voyage", "safari", "crossing", "holiday",
        "pilgrimage",
    ),
}  # fmt: skip
INDOORS = (
    "in the kitchen", "in the hall", "at the office", "in the library", "in the basement",
    "at the museum", "in the attic", "in the classroom", "at the theatre", "in the cellar",
)  # fmt: skip
OUTDOORS = (
    "in the garden", "in the park", "on the beach", "by the river", "in the forest",
    "on the mountain", "in the field", "on the hill", "by the lake", "in the meadow",
)  # fmt: skip
TIMES = (
    "on Monday", "on Friday", "on Sunday", "at noon", "at midnight", "at sunrise",
    "before lunch", "after dinner", "in winter", "in summer", "in April", "in October",
)  # fmt: skip


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _sentence_case(text: str) -> str:
    return text[0].upper() + text[1:]


@dataclass(frozen=True, slots=True)
class Scene:
    """One fact of the world, from which sentences are written.

    `form` chooses the order of the words.
    """

    name: str
    topic: str
    verb: tuple[str, str]
    thing: str
    good: bool
    adjective: str
    inside: bool
    place: str
    time: str
    past: bool
    form: int

    @classmethod
    def draw(cls, rng: random.Random) -> "Scene":
        """Draw a scene.

        Its parts are independent of each other, but for the verb and the thing, which share the
        topic.
        """
        topic, good, inside = rng.choice(sorted(THINGS)), rng.random() < 0.5, rng.random() < 0.5
        return cls(
            name=rng.choice(NAMES),
            topic=topic,
            verb=rng.choice(VERBS[topic] + SHARED_VERBS),
            thing=rng.choice(THINGS[topic]),
            good=good,
            adjective=rng.choice(POSITIVE if good else NEGATIVE),
            inside=inside,
            place=rng.choice(INDOORS if inside else OUTDOORS),
            time=rng.choice(TIMES),
            past=rng.random() < 0.5,
            form=rng.randrange(3),
        )

    def sentence(self) -> str:
        """The whole scene in one sentence."""
        does, thing = self.verb[self.past], self.thing
        if self.form == 0:
            return (
                f"{self.name} {does} {_article(self.adjective)} {thing} {self.place} {self.time}."
            )
        if self.form == 1:
            what = f"{_article(self.adjective)} {thing} {self.time}"
            return f"{_sentence_case(self.place)}, {self.name} {does} {what}."
        finds = "found" if self.past else "finds"
        what = f"{_article(thing)} {self.place} and {finds} it {self.adjective}"
        return f"{_sentence_case(self.time)}, {self.name} {does} {what}."

    def claim(self) -> str:
        """A short sentence that follows from the scene."""
        return f"{self.name} {self.verb[self.past]} {_article(self.thing)}."


def other(rng: random.Random, words: tuple[str, ...], word: str) -> str:
    """A word of the list that is not `word`."""
    return rng.choice([candidate for candidate in words if candidate != word])


# A maker turns a stream and a wanted label into (input, answer); `label` is "" for generation.
Maker = Callable[[random.Random, str], tuple[str, str]]


def _draw(rng: random.Random, wanted: Callable[[Scene], bool]) -> Scene:
    while not wanted(scene := Scene.draw(rng)):
        pass
    return scene


def _sentiment(rng: random.Random, label: str) -> tuple[str, str]:
    return _draw(rng, lambda scene: scene.good == (label == "positive")).sentence(), label


def _topic(rng: random.Random, label: str) -> tuple[str, str]:
    return _draw(rng, lambda scene: scene.topic == label).sentence(), label


def _place(rng: random.Random, label: str) -> tuple[str, str]:
    return _draw(rng, lambda scene: scene.inside == (label == "indoors")).sentence(), label


def _past_tense(rng: random.Random, label: str) -> tuple[str, str]:
    scene = Scene.draw(rng)
    return replace(scene, past=False).sentence(), replace(scene, past=True).sentence()


def _happened(rng: random.Random, label: str) -> tuple[str, str]:
    return _draw(rng, lambda scene: scene.past == (label == "yes")).sentence(), label


@dataclass(frozen=True, slots=True)
class _Spec:
    name: str
    instruction: str
    make: Maker
    labels: tuple[str, ...] | None
    metric: Metric = "exact_match"


_SPECS = (
    _Spec(
        "sentiment",
        "Is the review positive or negative? Options: positive, negative.",
        _sentiment,
        ("negative", "positive"),
    ),
    _Spec(
        "topic",
        "What is the topic of the sentence? Options: food, music.",
        _topic,
        ("food", "music"),
    ),
    _Spec("past_tense", "Rewrite the sentence in the past tense.", _past_tense, None, "rouge_l"),
    _Spec(
        "place",
        "Does this happen indoors or outdoors? Options: indoors, outdoors.",
        _place,
        ("indoors", "outdoors"),
    ),
    _Spec("happened", "Has this already happened? Options: yes, no.", _happened, ("no", "yes")),
)


def _split(spec: _Spec, split: str, rows: int, seed: int, taken: set[str]) -> tuple[Example, ...]:
    """Return as many examples of one label as of another, whose inputs are not in `taken`.

    Their inputs are added to `taken`.
    """
    rng = random.Random(f"mini/{seed}/{spec.name}/{split}")
    pairs: list[tuple[str, str]] = []
    while len(pairs) < rows:
        label = spec.labels[len(pairs) % len(spec.labels)] if spec.labels else ""
        text, answer = spec.make(rng, label)
        if text not in taken:
            taken.add(text)
            pairs.append((text, answer))
    rng.shuffle(pairs)
    return tuple(
        Example(f"{spec.name}/{split}/{row}", spec.instruction, text, answer)
        for row, (text, answer) in enumerate(pairs)
    )


def mini(seed: int = 0, train_rows: int = 200, test_rows: int = 100) -> Benchmark:
    """Make the benchmark.

    The test split is drawn first and from its own stream, so `train_rows` does not change it.
    """
    tasks = []
    for spec in _SPECS:
        taken: set[str] = set()
        test = _split(spec, "test", test_rows, seed, taken)
        train = _split(spec, "train", train_rows, seed, taken)
        tasks.append(Task(spec.name, train, test, spec.metric, spec.labels))
    return Benchmark.sequence("mini", "1", tasks)
