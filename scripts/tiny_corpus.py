"""The text on which `tiny` is pre-trained: many small instructions about the world of `mini`.

The backbone shall know what the words mean, answer with one of the options, extract and rewrite. It
shall not know the tasks of `mini`, but be above chance on them, as a language model is on tasks
whose wording it has not seen: no instruction of `mini` occurs here (`draw` checks that), and a
question that is answered with the labels of `mini` (`WORDING["hearsay"]`) is answered by chance in
part of the corpus.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from forever.data.mini import TASKS, WORLD, Scene
from forever.data.tasks import Example

WORDING: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("tiny_words.yaml").read_text(encoding="utf-8")
)
HELD_OUT_INSTRUCTIONS = {task.instruction for task in TASKS.values()}
GUESSED = 0.4  # share of hearsay whose answer is any of the options

_DATES = [
    ("day",),
    ("noon", "midnight", "sunrise"),
    ("winter", "summer"),
    ("April", "October"),
    ("lunch", "dinner"),
]

Drawn = tuple[str, str, str]  # instruction, input, answer


def _join(rng: random.Random, words: list[str]) -> str:
    forms = ("Options: {}.", "Options: {}.", "Choose from {}.", "Answer with {}.")
    return rng.choice(forms).format(", ".join(words))


def _classes(kind: str, rng: random.Random, scene: Scene) -> tuple[str, int]:
    """A text that carries the answer to question `kind`, and the index of its class."""
    sentence, claim = scene.sentence(), scene.claim()
    if kind == "start":
        return sentence, scene.form
    if kind == "opinion":
        return rng.choice((sentence, sentence, scene.adjective)), int(not scene.good)
    if kind == "subject":
        topic = sorted(WORLD["things"]).index(scene.topic)
        return rng.choice((sentence, sentence, claim, scene.thing)), topic
    if kind == "setting":
        return rng.choice((sentence, sentence, scene.place)), int(not scene.inside)
    if kind == "tense":
        return rng.choice((sentence, sentence, claim)), int(scene.past)
    date = next(i for i, ends in enumerate(_DATES) if scene.time.endswith(ends))
    return rng.choice((sentence, scene.time)), date


def _choice(rng: random.Random) -> Drawn:
    """A question with the names of its classes as options."""
    questions = WORDING["questions"]
    kind = rng.choice(tuple(questions))
    text, index = _classes(kind, rng, Scene.draw(rng))
    names = rng.choice(WORDING["namings"][kind])
    options = rng.sample(names, len(names))
    return f"{rng.choice(questions[kind])} {_join(rng, options)}", text, names[index]


def _hearsay(rng: random.Random) -> Drawn:
    """A question whose answers are labels of `mini`; some answers are guessed."""
    kind = rng.choice(tuple(WORDING["hearsay"]))
    asked = rng.choice(WORDING["hearsay"][kind])
    names = asked["names"]
    text, index = _classes(kind, rng, Scene.draw(rng))
    index = min(index, len(names) - 1)
    if rng.random() < GUESSED:
        index = rng.randrange(len(names))
    options = rng.sample(names, len(names))
    return f"{rng.choice(asked['questions'])} {_join(rng, options)}", text, names[index]


def _extraction(rng: random.Random) -> Drawn:
    scene, part = Scene.draw(rng), rng.choice(tuple(WORDING["extractions"]))
    answer = scene.verb[scene.past] if part == "verb" else getattr(scene, part)
    return rng.choice(WORDING["extractions"][part]), scene.sentence(), answer


def _rewrite(rng: random.Random) -> Drawn:
    scene, kind = Scene.draw(rng), rng.choice(tuple(WORDING["rewrites"]))
    name = rng.choice(WORLD["names"])
    changes: dict[str, dict[str, Any]] = {
        "now": {"past": False},
        "memory": {"past": True},
        "place_first": {"form": 1},
        "person_first": {"form": 0},
        "opinion_last": {"form": 2},
        "rename": {"name": name},
    }
    target = replace(scene, **changes.get(kind, {}))
    if kind in ("now", "memory"):
        scene = replace(scene, past=not target.past)
    answer = target.claim() if kind == "short" else target.sentence()
    return rng.choice(WORDING["rewrites"][kind]).format(name=name), scene.sentence(), answer


def _text(rng: random.Random) -> Drawn:
    """Plain text, without a prompt: a scene, and its core in the other tense."""
    scene = Scene.draw(rng)
    return "", "", f"{scene.sentence()} {replace(scene, past=not scene.past).claim()}"


_KINDS: dict[Callable[[random.Random], Drawn], float] = {
    _choice: 0.40,
    _hearsay: 0.15,
    _extraction: 0.15,
    _rewrite: 0.25,
    _text: 0.05,
}


def draw(rng: random.Random) -> Example:
    """One example; the one of plain text has no instruction."""
    make = rng.choices(tuple(_KINDS), tuple(_KINDS.values()))[0]
    instruction, text, answer = make(rng)
    assert instruction not in HELD_OUT_INSTRUCTIONS, f"an instruction of mini: {instruction!r}"
    return Example("", instruction, text, answer)
