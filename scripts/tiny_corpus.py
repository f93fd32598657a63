"""The text on which `tiny` is pre-trained: many small instructions about the world of `mini`.

The backbone shall know what the words mean, extract and rewrite; questions with options,
definitions in the prompt and comparisons are there too, but a model of this size learns the first
by heart and the last two hardly (README of tiny). It shall not know the tasks of `mini`: no
instruction of `mini` occurs here, and the label words of `mini` are nowhere the answer to a
question about a sentence (`HELD_OUT`; `draw` checks both). They occur in `_lists`, where an answer
is the word at a given place of a list, so that they are words that can be said.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from forever.data.mini import TASKS, WORLD, Scene
from forever.data.tasks import Example

WORDING: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("tiny_words.yaml").read_text(encoding="utf-8")
)
# `sport` and `travel` are topics of the world that `mini` could ask for, and are held out as well.
HELD_OUT = {"sport", "travel"}.union(*(task.labels for task in TASKS.values()))
HELD_OUT_INSTRUCTIONS = {task.instruction for task in TASKS.values()}

_NAMES = chain.from_iterable(chain.from_iterable(WORDING["namings"].values()))
_WORDS = sorted({*_NAMES, *WORDING["codes"], *HELD_OUT})
_PLACES = {"first": 0, "second": 1, "last": -1}
_DATES = [
    ("day",),
    ("noon", "midnight", "sunrise"),
    ("lunch", "dinner"),
    ("winter", "summer"),
    ("April", "October"),
]

Drawn = tuple[str, str, str]  # instruction, input, answer


def _other(rng: random.Random, words: list[str], word: str) -> str:
    return rng.choice([candidate for candidate in words if candidate != word])


def _join(rng: random.Random, words: list[str]) -> str:
    forms = ("Options: {}.", "Options: {}.", "Choose from {}.", "Answer with {}.")
    return rng.choice(forms).format(", ".join(words))


def _classes(kind: str, rng: random.Random, scene: Scene) -> tuple[str, int]:
    """A text that carries the answer to question `kind`, and the index of its class."""
    sentence, claim = scene.sentence(), scene.claim()
    if kind in ("claim", "person"):
        return _comparison(kind, rng, scene)
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
        return rng.choice((sentence, claim, scene.verb[scene.past])), int(scene.past)
    date = next(i for i, ends in enumerate(_DATES) if scene.time.endswith(ends))
    return rng.choice((sentence, scene.time)), date


def _comparison(kind: str, rng: random.Random, scene: Scene) -> tuple[str, int]:
    """Two texts, with index 0 if the second agrees with the first."""
    agree = rng.random() < 0.5
    if kind == "person":
        second = Scene.draw(rng)
        name = scene.name if agree else _other(rng, WORLD["names"], scene.name)
        first = scene.claim() if rng.random() < 0.5 else scene.sentence()
        return f"{first} {replace(second, name=name).claim()}", int(not agree)
    aspect = rng.choice(("name", "thing", "place", "time", "adjective"))
    things = list(chain.from_iterable(WORLD["things"].values()))
    if rng.random() < 0.3:
        things = WORLD["things"][scene.topic]
    pools = {
        "name": WORLD["names"],
        "thing": things,
        "place": WORLD["indoors"] + WORLD["outdoors"],
        "time": WORLD["times"],
        "adjective": WORLD["positive"] + WORLD["negative"],
    }
    claimed = scene
    if not agree:
        claimed = replace(scene, **{aspect: _other(rng, pools[aspect], getattr(scene, aspect))})
    claims = {"place": f"It was {claimed.place}.", "time": f"It was {claimed.time}."}
    claims["adjective"] = f"It was {claimed.adjective}."
    return f"{scene.sentence()} Claim: {claims.get(aspect, claimed.claim())}", int(not agree)


def _choice(rng: random.Random) -> Drawn:
    """A question with the names of its classes as options."""
    questions = WORDING["questions"]
    often = ("claim", "claim", "person", "subject", "opinion", "setting")
    kind = rng.choice((*questions, *often))
    text, index = _classes(kind, rng, Scene.draw(rng))
    names = rng.choice(WORDING["namings"][kind])
    options = rng.sample(names, len(names))
    return f"{rng.choice(questions[kind])} {_join(rng, options)}", text, names[index]


def _definition(rng: random.Random) -> Drawn:
    """Classes that have meaningless names; the prompt defines them."""
    kind = rng.choice(("opinion", "subject", "setting", "tense", "claim", "person", "start"))
    text, index = _classes(kind, rng, Scene.draw(rng))
    classes = list(range(len(WORDING["conditions"][kind])))
    # Two classes keep the prompt short; the other one of them is any that does not hold.
    if len(classes) > 2:
        classes = [index, rng.choice([number for number in classes if number != index])]
    rng.shuffle(classes)
    codes = dict(zip(classes, rng.sample(WORDING["codes"], 2), strict=True))
    rules = [f"{code} if {WORDING['conditions'][kind][number]}" for number, code in codes.items()]
    return f"Answer {', '.join(rules)}.", text, codes[index]


def _extraction(rng: random.Random) -> Drawn:
    scene, part = Scene.draw(rng), rng.choice(tuple(WORDING["extractions"]))
    answer = scene.verb[scene.past] if part == "verb" else getattr(scene, part)
    return rng.choice(WORDING["extractions"][part]), scene.sentence(), answer


def _rewrite(rng: random.Random) -> Drawn:
    scene, kind = Scene.draw(rng), rng.choice(tuple(WORDING["rewrites"]))
    name = _other(rng, WORLD["names"], scene.name)
    changes: dict[str, dict[str, Any]] = {
        "now": {"past": False},
        "place_first": {"form": 1},
        "person_first": {"form": 0},
        "opinion_last": {"form": 2},
        "rename": {"name": name},
    }
    target = replace(scene, **changes.get(kind, {}))
    if kind == "now":
        scene = replace(scene, past=True)
    answer = target.claim() if kind == "short" else target.sentence()
    return rng.choice(WORDING["rewrites"][kind]).format(name=name), scene.sentence(), answer


def _lists(rng: random.Random) -> Drawn:
    """Where a word stands decides, not what it means: only here, labels of `mini` are answers."""
    words, place = rng.sample(_WORDS, rng.randint(2, 5)), rng.choice(tuple(_PLACES))
    answer = words[_PLACES[place]]
    if rng.random() < 0.5:
        return f"Give the {place} word of the list.", ", ".join(words), answer
    instruction = f"Take the {place} one. {_join(rng, words)}"
    return instruction, Scene.draw(rng).sentence(), answer


def _text(rng: random.Random) -> Drawn:
    """Plain text, without a prompt: a scene, and its core in the other tense."""
    scene = Scene.draw(rng)
    return "", "", f"{scene.sentence()} {replace(scene, past=not scene.past).claim()}"


_KINDS: dict[Callable[[random.Random], Drawn], float] = {
    _choice: 0.42,
    _definition: 0.14,
    _extraction: 0.11,
    _rewrite: 0.20,
    _lists: 0.08,
    _text: 0.05,
}


def draw(rng: random.Random) -> Example:
    """One example; the one of plain text has no instruction."""
    make = rng.choices(tuple(_KINDS), tuple(_KINDS.values()))[0]
    instruction, text, answer = make(rng)
    assert instruction not in HELD_OUT_INSTRUCTIONS, f"an instruction of mini: {instruction!r}"
    assert make is _lists or answer not in HELD_OUT, f"{answer!r} is a label of mini"
    return Example("", instruction, text, answer)
