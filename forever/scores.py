"""How an answer is scored: a metric compares it with the right one and gives a number in [0, 1].

To add a metric, write a function of the two texts and give it a name in `METRICS`.
"""

import hashlib
import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from difflib import SequenceMatcher
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path
from threading import get_ident
from typing import Any

from forever.errors import InputError, one_line, shown, unknown

Function = Callable[[str, str], float]  # of a prediction and a reference


def exact_match(prediction: str, reference: str) -> float:
    """Return 1 if the two are equal but for case and surrounding blanks, else 0."""
    return float(prediction.strip().lower() == reference.strip().lower())


def rouge_l(prediction: str, reference: str) -> float:
    """Return ROUGE-L F1 with stemming (Lin 2004), by Google's `rouge-score`, on lower case."""
    score = _rouge_scorer().score(reference.strip().lower(), prediction.strip().lower())
    return float(score["rougeL"].fmeasure)


def token_f1(prediction: str, reference: str) -> float:
    """Return F1 of the words that both have, as SQuAD does (Rajpurkar et al. 2016).

    Words are compared without case, punctuation and English articles.
    """
    said, right = _words(prediction), _words(reference)
    if not said or not right:
        return float(said == right)
    shared = (Counter(said) & Counter(right)).total()
    return 2 * shared / (len(said) + len(right))


def edit_similarity(prediction: str, reference: str) -> float:
    """Return twice the characters that match in order over all characters of both.

    That is `difflib`'s ratio, and the one of fuzzywuzzy, by which CodeXGLUE and TRACE score code.
    """
    texts = prediction.strip(), reference.strip()
    return SequenceMatcher(None, *texts, autojunk=False).ratio()


def numeric(prediction: str, reference: str) -> float:
    """Return 1 if the last number of each is the same, else 0, as GSM8K is scored.

    1,000 is 1000 and 2.50 is 2.5. Where there is no number, nothing is the same.
    """
    number = _last_number(prediction)
    return float(number is not None and number == _last_number(reference))


def choice(prediction: str, reference: str) -> float:
    """Return 1 if the first capital letter that is a word of its own is the same, else 0.

    So answers of multiple choice are compared by their letter, whatever reasoning follows.
    """
    said, right = _LETTER.search(prediction), _LETTER.search(reference)
    return float(said is not None and right is not None and said[0] == right[0])


METRICS: dict[str, Function] = {
    "exact_match": exact_match,
    "rouge_l": rouge_l,
    "token_f1": token_f1,
    "edit_similarity": edit_similarity,
    "numeric": numeric,
    "choice": choice,
}
# Measured by the probabilities of the right answer and of others (`evaluation.likelihood`): the
# model writes nothing.
BY_LIKELIHOOD = LABEL_LIKELIHOOD, TEXT_LIKELIHOOD = ("label_likelihood", "text_likelihood")
NAMES = (*METRICS, *BY_LIKELIHOOD)
# The metrics of TRACE's tasks (Wang et al. 2023) by the names of their folders. Its own of the last
# task is SARI, which no library here has.
TRACE = {
    "C-STANCE": "exact_match",
    "FOMC": "exact_match",
    "MeetingBank": "rouge_l",
    "Py150": "edit_similarity",
    "ScienceQA": "choice",
    "NumGLUE-cm": "exact_match",
    "NumGLUE-ds": "exact_match",
    "20Minuten": "rouge_l",
}

_ARTICLES = {"a", "an", "the"}
_LETTER = re.compile(r"\b[A-Z]\b")
_THOUSANDS = r"\d+(?:,\d{3}(?!\d))*"
_NUMBER = re.compile(rf"(?:(?<![\w)])-)?(?:{_THOUSANDS}(?:\.\d+)?|\.\d+)", re.ASCII)
_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _words(text: str) -> list[str]:
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return [word for word in plain.split() if word not in _ARTICLES]


def _last_number(text: str) -> Decimal | None:
    numbers = _NUMBER.findall(text)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def score(metric: str, predictions: Sequence[str], references: Sequence[str]) -> list[float]:
    """Score each answer, in [0, 1].

    Raises:
        InputError: a function of the user's own fails, or gives something else.
    """
    function = METRICS.get(metric) or own_metric(metric)
    return [function(p, r) for p, r in zip(predictions, references, strict=True)]


# ---- metrics of the user's own


def known_metric(name: str) -> str:
    """Return the name of a metric; InputError if it is neither ours nor `module:function`."""
    if name not in NAMES and not _OWN.fullmatch(name):
        raise unknown("metric", name, (*NAMES, "module:function"))
    return name


def with_digest(name: str) -> str:
    """Return the name of a metric; that of the user's own function has the digest of its file.

    Raises:
        InputError: the working directory has no such function.
    """
    return f"{name}@{_own(name)[1]}" if _OWN.fullmatch(name) else name


def own_metric(name: str) -> Function:
    """Return the user's own function, checked to give numbers in [0, 1].

    Args:
        name: `module:function@digest`, as `with_digest` gives it.

    Raises:
        InputError: there is none, or its file is another one now.
    """
    short, _, digest = name.partition("@")
    function, now = _own(short)
    if now != digest:
        raise InputError(f"data.metrics: the file of {short} has changed since the run began")

    def checked(prediction: str, reference: str) -> float:
        try:
            value = float(function(prediction, reference))
        except Exception as error:  # it is the user's code
            raise InputError(
                f"data.metrics: {short} failed on the reference {shown(reference)}: "
                f"{type(error).__name__}: {one_line(error)}"
            ) from error
        if not 0 <= value <= 1:
            raise InputError(
                f"data.metrics: {short} gave {value} for the reference {shown(reference)}; a score "
                "is a number from 0 to 1"
            )
        return value

    return checked


@cache
def _own(name: str) -> tuple[Function, str]:
    """Load a function from a module in the working directory; return it and its file's digest."""
    module, function = name.split(":")
    folder = Path.cwd()
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    # Nothing else is imported: a configuration by somebody else names no function of a library.
    if not path.is_file():
        raise InputError(
            f"data.metrics: {name} is a function in {path}, which does not exist; write it there, "
            f"or give one of {', '.join(NAMES)}"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    sys.path.insert(0, str(folder))
    try:
        loaded = import_module(module)
    except Exception as error:  # it is the user's code
        problem = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"data.metrics: {path} cannot be imported ({problem})") from error
    finally:
        sys.path.remove(str(folder))
    if Path(loaded.__file__ or "").resolve() != path.resolve():
        raise InputError(
            f"data.metrics: the name {module!r} is taken by {loaded.__file__}; rename {path.name}"
        )
    if not callable(getattr(loaded, function, None)):
        raise InputError(f"data.metrics: {path} has no function {function!r}")
    return getattr(loaded, function), digest


# ---- rouge-score, loaded without what only other users of NLTK need


@cache
def _rouge_scorer() -> Any:
    # Of NLTK only a stemmer is needed. Other parts of it would load these two, and do without them
    # where they are not installed: all of NLTK takes 0.3 s then instead of 1.7 s.
    with hidden("sklearn", "scipy"):
        from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=True)


@contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Within this context these packages are not installed as far as this thread can see.

    Other threads import them as ever.
    """
    thread = get_ident()

    class Refusal(MetaPathFinder):
        def find_spec(self, name: str, path: Any, target: Any = None) -> None:
            if name.partition(".")[0] in packages and get_ident() == thread:
                raise ModuleNotFoundError(f"{name} is hidden here", name=name)

    refusal = Refusal()
    sys.meta_path.insert(0, refusal)
    try:
        yield
    finally:
        sys.meta_path.remove(refusal)
