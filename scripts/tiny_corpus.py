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

# A question about a scene: how it can be asked, the names of its classes, and how a class is put in
# words. The names in one row of `NAMINGS` stand in the order of `CONDITIONS`.
QUESTIONS = {
    "opinion": (
        "How does the writer feel about it?", "Which word sums up the opinion?", "Judge the mood of the text.",
        "What does the speaker think?", "Is this a good or a bad experience?", "Rate the review.",
    ),
    "subject": (
        "What is this about?", "Which field does the text belong to?", "Sort the text into a group.",
        "Choose the fitting category.", "Which heading suits it best?", "Name the area of life.",
    ),
    "setting": (
        "What kind of place is it?", "Where are they?", "Is there a roof over them?",
        "Choose the setting.", "Describe the surroundings with one word.", "What is around the person?",
    ),
    "tense": (
        "When is the action?", "Which form does the verb have?", "Is it over?", "Tell the tense.",
    ),
    "calendar": (
        "What kind of time is given?", "How is the time expressed?", "Choose the kind of date.",
    ),
    "start": (
        "What does the text begin with?", "What stands in front?", "Name the kind of the opening words.",
    ),
    "claim": (
        "Check the claim.", "Compare the claim with the text.", "Can the claim be trusted?", "Judge the statement.",
        "Is the claim backed by the text?", "Do text and claim match?",
    ),
    "person": (
        "Do both mention one person?", "Compare the people.", "Is the person still the one from before?",
    ),
}  # fmt: skip
NAMINGS = {
    "opinion": (
        ("good", "bad"), ("happy", "unhappy"), ("pleased", "upset"), ("praise", "complaint"), ("plus", "minus"),
        ("like", "dislike"), ("keen", "sour"), ("fan", "critic"), ("warm", "cold"),
    ),
    "subject": (
        ("meals", "songs", "games", "trips"), ("cuisine", "sounds", "athletics", "tourism"),
        ("eating", "listening", "competing", "touring"), ("cook", "musician", "athlete", "tourist"),
        ("plate", "guitar", "ball", "suitcase"), ("taste", "ear", "muscle", "map"),
    ),
    "setting": (
        ("inside", "outside"), ("building", "nature"), ("room", "landscape"), ("covered", "open"),
        ("walls", "sky"), ("interior", "exterior"), ("house", "country"),
    ),
    "tense": (("present", "past"), ("now", "then"), ("today", "earlier"), ("ongoing", "done")),
    "calendar": (("weekday", "clock", "meal", "season", "month"), ("day", "hour", "dish", "weather", "date")),
    "start": (("person", "place", "time"), ("who", "where", "when"), ("human", "spot", "moment")),
    "claim": (
        ("true", "false"), ("right", "wrong"), ("correct", "incorrect"), ("valid", "invalid"), ("fits", "clashes"),
        ("supported", "refuted"), ("sure", "never"),
    ),
    "person": (("same", "different"), ("equal", "unequal"), ("one", "two"), ("match", "mismatch")),
}  # fmt: skip
CONDITIONS = {
    "opinion": ("the writer liked it", "the writer hated it"),
    "subject": ("it is something to eat", "it is something to hear", "it is something to compete in", "one goes away"),
    "setting": ("there are walls around", "they are in the open air"),
    "tense": ("it happens now", "it is over"),
    "calendar": ("a day is named", "an hour is named", "a meal is named", "a season is named", "a month is named"),
    "start": ("a person comes first", "a place comes first", "a time comes first"),
    "claim": ("the claim is sound", "the claim is made up"),
    "person": ("the person is kept", "the person changes"),
}  # fmt: skip
# Words without a meaning for the questions, for answers that only the prompt defines.
CODES = (
    "red", "blue", "green", "black", "white", "orange", "cat", "dog", "horse", "fish", "bird", "lion", "iron", "gold",
    "wood", "glass", "paper", "stone", "north", "south", "east", "west", "alpha", "beta", "gamma", "delta", "king",
    "queen", "left", "up", "down", "chair", "table", "lamp", "river", "star", "moon", "sun", "leaf", "key",
)  # fmt: skip
EXTRACTIONS = {
    "name": ("Who is it?", "Name the person.", "Which person is mentioned?", "Who did this?"),
    "thing": (
        "Which thing is mentioned?",
        "Name the object.",
        "What is it that the person deals with?",
    ),
    "adjective": (
        "How is it described?",
        "Find the describing word.",
        "Which word gives the opinion?",
    ),
    "place": ("Quote the place.", "Which place is mentioned?", "Find the words for the location."),
    "time": ("Quote the time.", "Which date is given?", "Find the words for the moment."),
    "verb": (
        "Find the verb.",
        "What does the person do? Give the verb.",
        "Which word is the action?",
    ),
}
REWRITES = {
    "copy": ("Repeat the text.", "Write it again.", "Copy this."),
    "now": (
        "Tell it as if you saw it now.",
        "Bring the story into today.",
        "Let it happen at this moment.",
    ),
    "place_first": ("Begin with the place.", "Move the location to the front."),
    "person_first": ("Begin with the person.", "Move the name to the front."),
    "opinion_last": (
        "Begin with the time and end with the opinion.",
        "Let the judgement come last.",
    ),
    "short": ("Shorten it.", "Say only who does what.", "Keep the core of the text."),
    "rename": ("Replace the person by {name}.", "Now it is {name}. Change the text."),
}
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
    """Where a word stands decides, not what it means; the only place where the labels of `mini` are
    answers."""
    words, place = rng.sample(_WORDS, rng.randint(2, 5)), rng.choice(tuple(_PLACES))
    if rng.random() < 0.5:
        return f"Give the {place} word of the list.", ", ".join(words), words[_PLACES[place]]
    return (
        f"Take the {place} one. {_join(rng, words)}",
        Scene.draw(rng).sentence(),
        words[_PLACES[place]],
    )


def _text(rng: random.Random) -> tuple[str, str, str]:
    """Plain text, without a prompt: a scene, and its core in the other tense, so that the forms of
    a verb meet."""
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
