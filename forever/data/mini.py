"""`mini`: an embedded benchmark of eight small tasks in plain English, made by code from a seed.

Every task is about the same small world: a person does something with a thing, somewhere, at some
time, and has an opinion about it. So the inputs of all tasks look alike, five tasks share their
answers, and only the instruction tells them apart: what is learned for one task is overwritten by
the next, which is what a continual-learning benchmark must show. The backbone `tiny`
(forever/models/tiny) was pre-trained on other questions about this world. It has never seen these
eight, but it is above chance on them, as a language model is on a benchmark.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from forever.data.tasks import Example, Splits

# In the name of every random stream, so that runs of another version have other digests of their
# tasks. A report refuses runs of other tasks, and pairs only those with the same test rows.
VERSION = 2
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
    """A question about scenes. With `labels` there are as many examples of one as of another."""

    instruction: str
    answer: Callable[[Scene], str]
    labels: tuple[str, ...] = ()
    viewed: Callable[[Scene], Scene] = lambda scene: scene  # what is made of a scene before


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


TASKS = {
    "sentiment": MiniTask(
        "Is the review positive or negative?",
        lambda scene: "positive" if scene.good else "negative",
        ("negative", "positive"),
    ),
    "happened": MiniTask(
        "Has this already happened? Options: yes, no.",
        lambda scene: _yes(scene.past),
        ("no", "yes"),
    ),
    "past_tense": MiniTask(
        "Rewrite the sentence in the past tense.",
        lambda scene: replace(scene, past=True).sentence(),
        viewed=lambda scene: replace(scene, past=False),
    ),
    "advice": MiniTask(
        "Would you recommend it to a friend? Options: yes, no.",
        lambda scene: _yes(scene.good),
        ("no", "yes"),
    ),
    "topic": MiniTask(
        "What is the topic of the sentence?",
        lambda scene: scene.topic,
        ("food", "music", "sport", "travel"),
    ),
    "rain": MiniTask(
        "Would they stay dry in the rain? Options: yes, no.",
        lambda scene: _yes(scene.inside),
        ("no", "yes"),
    ),
    "sport": MiniTask(
        "Is this about sport? Options: yes, no.",
        lambda scene: _yes(scene.topic == "sport"),
        ("no", "yes"),
    ),
    "opening": MiniTask(
        "Does a person open the sentence? Options: yes, no.",
        lambda scene: _yes(scene.form == 0),
        ("no", "yes"),
    ),
}


@dataclass(frozen=True)
class Embedded:
    """A task of mini as runs have it."""

    name: str

    def splits(self, needs_test: bool = True) -> Splits:
        """Make the training and test examples."""
        return mini_task(self.name)

    def examples(self, split: str) -> tuple[Example, ...]:
        """Make the examples of a split."""
        return mini_task(self.name)[split == "test"]

    def origin(self) -> str:
        """Say that no file is read."""
        return "embedded"


def mini_task(name: str, seed: int = 0, train_rows: int = 160, test_rows: int = 60) -> Splits:
    """Make one task: as many examples of one label as of another, and no input twice.

    The test split is drawn first and from its own stream, so `train_rows` does not change it.
    """
    taken: set[str] = set()
    test = _split(name, "test", test_rows, seed, taken)
    return _split(name, "train", train_rows, seed, taken), test


def _split(name: str, split: str, rows: int, seed: int, taken: set[str]) -> tuple[Example, ...]:
    """Return examples whose inputs are not in `taken`, and add their inputs to it."""
    task = TASKS[name]
    rng = random.Random(f"mini/{VERSION}/{seed}/{name}/{split}")
    pairs: list[tuple[str, str]] = []
    while len(pairs) < rows:
        label = task.labels[len(pairs) % len(task.labels)] if task.labels else None
        scene = task.viewed(Scene.draw(rng))
        while label is not None and task.answer(scene) != label:
            scene = task.viewed(Scene.draw(rng))
        text = scene.sentence()
        if text not in taken:
            taken.add(text)
            pairs.append((text, task.answer(scene)))
    rng.shuffle(pairs)
    examples: list[Example] = []
    for row, (text, answer) in enumerate(pairs):
        examples.append(Example(f"{name}/{split}/{row}", task.instruction, text, answer))
    return tuple(examples)
