"""`mini`: an embedded benchmark of five small tasks in plain English, made by code from a seed.

Every task looks at the same small world: a person does something with a thing, somewhere, at some
time, and has an opinion about it. So the inputs of all tasks look alike and only the instruction
tells them apart: what is learned for one task is overwritten by the next, which is what a
continual-learning benchmark must show. The backbone `tiny` (forever/models/tiny) was pre-trained on
other questions about this world; it has never seen these five.

The world has sport and travel too, which the other tasks speak of. A topic task with all four was
learned alone but stayed at chance in joint training, which then was no upper bound.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from forever.data.tasks import Example, Splits

WORLD: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _sentence_case(text: str) -> str:
    return text[0].upper() + text[1:]


@dataclass(frozen=True, slots=True)
class Scene:
    """One fact of the world, from which sentences are written."""

    name: str
    topic: str
    verb: tuple[str, str]  # present and past
    thing: str
    good: bool
    adjective: str
    inside: bool
    place: str
    time: str
    past: bool
    form: int  # which of three orders the words have

    @classmethod
    def draw(cls, rng: random.Random) -> "Scene":
        """Draw a scene whose parts are independent; verb and thing share the topic."""
        topic = rng.choice(sorted(WORLD["things"]))
        good, inside = rng.random() < 0.5, rng.random() < 0.5
        return cls(
            name=rng.choice(WORLD["names"]),
            topic=topic,
            verb=rng.choice(WORLD["verbs"][topic] + WORLD["shared_verbs"]),
            thing=rng.choice(WORLD["things"][topic]),
            good=good,
            adjective=rng.choice(WORLD["positive" if good else "negative"]),
            inside=inside,
            place=rng.choice(WORLD["indoors" if inside else "outdoors"]),
            time=rng.choice(WORLD["times"]),
            past=rng.random() < 0.5,
            form=rng.randrange(3),
        )

    def sentence(self) -> str:
        """The whole scene in one sentence."""
        does = self.verb[self.past]
        praised = f"{_article(self.adjective)} {self.thing}"
        if self.form == 0:
            return f"{self.name} {does} {praised} {self.place} {self.time}."
        if self.form == 1:
            return f"{_sentence_case(self.place)}, {self.name} {does} {praised} {self.time}."
        finds = ("finds", "found")[self.past]
        what = f"{_article(self.thing)} {self.place} and {finds} it {self.adjective}"
        return f"{_sentence_case(self.time)}, {self.name} {does} {what}."

    def claim(self) -> str:
        """A short sentence that follows from the scene."""
        return f"{self.name} {self.verb[self.past]} {_article(self.thing)}."


@dataclass(frozen=True)
class MiniTask:
    """A question about scenes; without `labels`, the answer is the scene in the past tense."""

    instruction: str
    labels: tuple[str, ...] = ()
    holds: Callable[[Scene, str], bool] = lambda scene, label: True


TASKS = {
    "sentiment": MiniTask(
        "Is the review positive or negative? Options: positive, negative.",
        ("negative", "positive"),
        lambda scene, label: scene.good == (label == "positive"),
    ),
    "topic": MiniTask(
        "What is the topic of the sentence? Options: food, music.",
        ("food", "music"),
        lambda scene, label: scene.topic == label,
    ),
    "past_tense": MiniTask("Rewrite the sentence in the past tense."),
    "place": MiniTask(
        "Does this happen indoors or outdoors? Options: indoors, outdoors.",
        ("indoors", "outdoors"),
        lambda scene, label: scene.inside == (label == "indoors"),
    ),
    "happened": MiniTask(
        "Has this already happened? Options: yes, no.",
        ("no", "yes"),
        lambda scene, label: scene.past == (label == "yes"),
    ),
}


def mini_task(name: str, seed: int = 0, train_rows: int = 200, test_rows: int = 100) -> Splits:
    """Make one task: as many examples of one label as of another, and no input twice.

    The test split is drawn first and from its own stream, so `train_rows` does not change it.
    """
    taken: set[str] = set()
    test = _split(name, "test", test_rows, seed, taken)
    return _split(name, "train", train_rows, seed, taken), test


def _split(name: str, split: str, rows: int, seed: int, taken: set[str]) -> tuple[Example, ...]:
    """Return examples whose inputs are not in `taken`, and add their inputs to it."""
    task = TASKS[name]
    rng = random.Random(f"mini/{seed}/{name}/{split}")
    pairs: list[tuple[str, str]] = []
    while len(pairs) < rows:
        label = task.labels[len(pairs) % len(task.labels)] if task.labels else ""
        scene = Scene.draw(rng)
        while not task.holds(scene, label):
            scene = Scene.draw(rng)
        text, answer = scene.sentence(), label
        if not task.labels:
            text = replace(scene, past=False).sentence()
            answer = replace(scene, past=True).sentence()
        if text not in taken:
            taken.add(text)
            pairs.append((text, answer))
    rng.shuffle(pairs)
    examples: list[Example] = []
    for row, (text, answer) in enumerate(pairs):
        examples.append(Example(f"{name}/{split}/{row}", task.instruction, text, answer))
    return tuple(examples)
