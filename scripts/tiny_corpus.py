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

from tiny_words import CODES, CONDITIONS, EXTRACTIONS, NAMINGS, QUESTIONS, REWRITES

from forever.data.mini import (
    INDOORS,
    NAMES,
    NEGATIVE,
    OUTDOORS,
    POSITIVE,
    THINGS,
    TIMES,
    Scene,
    mini,
    other,
)
from forever.data.tasks import Example

_MINI = mini(train_rows=8, test_rows=8)
# `sport` and `travel` are topics of the world that `mini` could ask for, and are held out as well.
HELD_OUT = frozenset(label for task in _MINI.tasks for label in task.labels or ()) | {
    "sport",
    "travel",
}
HELD_OUT_INSTRUCTIONS = frozenset(task.test[0].instruction for task in _MINI.tasks)

_WORDS = sorted(
    {word for namings in NAMINGS.values() for naming in namings for word in naming}
    | {*CODES}
    | HELD_OUT
)
_PLACES = {"first": 0, "second": 1, "last": -1}


def _join(rng: random.Random, words: list[str]) -> str:
    return rng.choice(
        ("Options: {}.", "Options: {}.", "Choose from {}.", "Answer with {}.")
    ).format(", ".join(words))


def _classes(kind: str, rng: random.Random, scene: Scene) -> tuple[str, int]:
    """A text that carries the answer to question `kind`, and the index of its class."""
    if kind == "opinion":
        return rng.choice((scene.sentence(), scene.sentence(), scene.adjective)), int(
            not scene.good
        )
    if kind == "subject":
        return rng.choice((scene.sentence(), scene.sentence(), scene.claim(), scene.thing)), sorted(
            THINGS
        ).index(scene.topic)
    if kind == "setting":
        return rng.choice((scene.sentence(), scene.sentence(), scene.place)), int(not scene.inside)
    if kind == "tense":
        return rng.choice((scene.sentence(), scene.claim(), scene.verb[scene.past])), int(
            scene.past
        )
    if kind == "calendar":
        return rng.choice((scene.sentence(), scene.time)), _calendar(scene.time)
    if kind == "start":
        return scene.sentence(), scene.form
    return _comparison(kind, rng, scene)


def _calendar(time: str) -> int:
    kinds = (
        ("day",),
        ("noon", "midnight", "sunrise"),
        ("lunch", "dinner"),
        ("winter", "summer"),
        ("April", "October"),
    )
    return next(i for i, ends in enumerate(kinds) if time.endswith(ends))


def _comparison(kind: str, rng: random.Random, scene: Scene) -> tuple[str, int]:
    """Two texts, with index 0 if the second agrees with the first."""
    agree = rng.random() < 0.5
    if kind == "person":
        second = replace(
            Scene.draw(rng), name=scene.name if agree else other(rng, NAMES, scene.name)
        )
        first = scene.claim() if rng.random() < 0.5 else scene.sentence()
        return f"{first} {second.claim()}", int(not agree)
    aspect = rng.choice(("name", "thing", "place", "time", "adjective"))
    pools = {
        "name": NAMES,
        "thing": THINGS[scene.topic] if rng.random() < 0.3 else sum(THINGS.values(), ()),
        "place": INDOORS + OUTDOORS,
        "time": TIMES,
        "adjective": POSITIVE + NEGATIVE,
    }
    claimed = (
        scene
        if agree
        else replace(scene, **{aspect: other(rng, pools[aspect], getattr(scene, aspect))})
    )
    claims = {"place": f"It was {claimed.place}.", "time": f"It was {claimed.time}."}
    claims["adjective"] = f"It was {claimed.adjective}."
    return f"{scene.sentence()} Claim: {claims.get(aspect, claimed.claim())}", int(not agree)


def _choice(rng: random.Random) -> tuple[str, str, str]:
    """A question with the names of its classes as options."""
    kind = rng.choice((*QUESTIONS, "claim", "claim", "person", "subject", "opinion", "setting"))
    text, index = _classes(kind, rng, Scene.draw(rng))
    names = rng.choice(NAMINGS[kind])
    options = rng.sample(names, len(names))
    return f"{rng.choice(QUESTIONS[kind])} {_join(rng, options)}", text, names[index]


def _definition(rng: random.Random) -> tuple[str, str, str]:
    """Classes that have meaningless names; the prompt defines them."""
    kind = rng.choice(("opinion", "subject", "setting", "tense", "claim", "person", "start"))
    text, index = _classes(kind, rng, Scene.draw(rng))
    conditions = list(enumerate(CONDITIONS[kind]))
    # Two classes keep the prompt short; the other one of them is any that does not hold.
    if len(conditions) > 2:
        conditions = [
            conditions[index],
            rng.choice([pair for pair in conditions if pair[0] != index]),
        ]
    rng.shuffle(conditions)
    codes = rng.sample(CODES, 2)
    rules = [
        f"{code} if {condition}" for code, (_, condition) in zip(codes, conditions, strict=True)
    ]
    answer = next(code for code, (i, _) in zip(codes, conditions, strict=True) if i == index)
    return f"Answer {', '.join(rules)}.", text, answer


def _extraction(rng: random.Random) -> tuple[str, str, str]:
    scene, part = Scene.draw(rng), rng.choice(tuple(EXTRACTIONS))
    answer = scene.verb[scene.past] if part == "verb" else getattr(scene, part)
    return rng.choice(EXTRACTIONS[part]), scene.sentence(), answer


def _rewrite(rng: random.Random) -> tuple[str, str, str]:
    scene, kind = Scene.draw(rng), rng.choice(tuple(REWRITES))
    name = other(rng, NAMES, scene.name)
    target = {
        "copy": scene,
        "now": replace(scene, past=False),
        "place_first": replace(scene, form=1),
        "person_first": replace(scene, form=0),
        "opinion_last": replace(scene, form=2),
        "short": scene,
        "rename": replace(scene, name=name),
    }[kind]
    if kind == "now":
        scene = replace(scene, past=True)
    answer = target.claim() if kind == "short" else target.sentence()
    return rng.choice(REWRITES[kind]).format(name=name), scene.sentence(), answer


def _lists(rng: random.Random) -> tuple[str, str, str]:
    """Where a word stands decides, not what it means.

    This is the only place where the labels of `mini` are answers.
    """
    words, place = rng.sample(_WORDS, rng.randint(2, 5)), rng.choice(tuple(_PLACES))
    if rng.random() < 0.5:
        return f"Give the {place} word of the list.", ", ".join(words), words[_PLACES[place]]
    return (
        f"Take the {place} one. {_join(rng, words)}",
        Scene.draw(rng).sentence(),
        words[_PLACES[place]],
    )


def _text(rng: random.Random) -> tuple[str, str, str]:
    """Plain text, without a prompt: a scene, and its core in the other tense.

    So the forms of a verb meet.
    """
    scene = Scene.draw(rng)
    return "", "", f"{scene.sentence()} {replace(scene, past=not scene.past).claim()}"


_KINDS: dict[Callable[[random.Random], tuple[str, str, str]], float] = {
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
    assert make is _lists or answer not in HELD_OUT, (
        f"{make.__name__} answers with {answer!r}, a label of mini"
    )
    return Example("", instruction, text, answer)
