"""Scores against hand values and against rouge-score itself."""

import subprocess
import sys

import pytest
from rouge_score.rouge_scorer import RougeScorer

from forever.evaluation.metrics import PerformanceMatrix, exact_match, rouge_l, score, scores_after

#             after stage   1     2     3
A = [[80.0, 60.0, 50.0], [None, 90.0, 40.0], [None, None, 70.0]]
UNTRAINED = [10.0, 20.0, 30.0]
AHEAD = {(1, 0): 35.0, (2, 1): 25.0}


def matrix(ahead: bool = False) -> PerformanceMatrix:
    """A 3 x 3 matrix with two items a cell, whose mean is the number above."""
    names = ("a", "b", "c")
    made = PerformanceMatrix(names, names)
    cells: dict[tuple[int, int], float] = {}
    for i, row in enumerate(A):
        cells |= {(i, j): value for j, value in enumerate(row) if value is not None}
    if ahead:
        cells |= AHEAD | {(i, -1): value for i, value in enumerate(UNTRAINED)}
    for index, value in cells.items():
        made.items[index] = [value / 100 - 0.05, value / 100 + 0.05]
    return made


def test_overall_performance_and_backward_transfer() -> None:
    assert matrix().overall() == pytest.approx((50 + 40 + 70) / 3)
    assert matrix().backward_transfer() == pytest.approx(((50 - 80) + (40 - 90)) / 2)
    one = PerformanceMatrix(("a",), ("a",), {(0, 0): [1.0, 0.0]})
    assert one.overall() == 50
    assert one.backward_transfer() is one.forgetting() is one.forward_transfer() is None


def test_forgetting_counts_from_the_best_score() -> None:
    assert matrix().forgetting() == pytest.approx(((80 - 50) + (90 - 40)) / 2)
    risen = matrix()
    risen.items[0, 1] = [0.95]
    assert risen.forgetting() == pytest.approx(((95 - 50) + (90 - 40)) / 2)
    assert risen.backward_transfer() == pytest.approx(-40)
    gained = matrix()
    gained.items[0, 2] = [1.0]  # better at the end than ever before: negative forgetting
    assert gained.forgetting() == pytest.approx(((80 - 100) + (90 - 40)) / 2)


def test_forward_transfer() -> None:
    assert matrix(ahead=True).forward_transfer() == pytest.approx(((35 - 20) + (25 - 30)) / 2)
    assert matrix().forward_transfer() is None
    incomplete = matrix(ahead=True)
    del incomplete.items[2, -1]
    assert incomplete.forward_transfer() is None


def test_until() -> None:
    """The matrix as it was after two stages: K is 2 then."""
    two = matrix().until(1)
    assert two.tasks == two.stages == ("a", "b")
    assert two.overall() == pytest.approx((60 + 90) / 2)
    assert two.backward_transfer() == pytest.approx(60 - 80)
    one = matrix().until(0)
    assert one.overall() == pytest.approx(80)
    assert one.backward_transfer() is None
    assert one.forgetting() is None
    assert matrix().until(2).overall() == matrix().overall()


def test_joint_training_has_overall_performance_only() -> None:
    items = {(0, 0): [1.0], (1, 0): [0.5], (2, 0): [0.0]}
    joint = PerformanceMatrix(("a", "b", "c"), ("joint",), items)
    assert joint.overall() == pytest.approx(50)
    assert joint.backward_transfer() is None
    assert joint.forgetting() is None
    assert joint.until(0) is joint
    assert scores_after(joint, 0) == {"acc/a": 100, "acc/b": 50, "acc/c": 0, "op": 50, "bwt": None}


def test_overall_needs_every_score() -> None:
    broken = matrix()
    del broken.items[1, 2]
    with pytest.raises(KeyError):
        broken.overall()


def test_exact_match() -> None:
    for same in [("yes", "yes"), ("Yes", "yES"), (" yes\n", "yes "), ("", "")]:
        assert exact_match(*same) == 1
    for other in [("yes.", "yes"), ("yes yes", "yes"), ("", "yes"), ("very  good", "very good")]:
        assert exact_match(*other) == 0


PAIRS = [
    ("the cat sat on the mat", "the cat is on the mat"),
    ("Running dogs RUN", "a running dog runs"),
    ("mat the on sat cat the", "the cat sat on the mat"),
    ("", "something"),
    ("something", ""),
    (" blanks around ", "blanks around"),
    ("Ünïcode déjà", "ünïcode"),
    ("one", "one two three four"),
]


def test_rouge_l_equals_rouge_score() -> None:
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    for prediction, reference in PAIRS:
        direct = scorer.score(reference.strip().lower(), prediction.strip().lower())
        assert rouge_l(prediction, reference) == direct["rougeL"].fmeasure


def test_rouge_l_by_hand() -> None:
    assert rouge_l("the same text", "The same text") == 1
    assert rouge_l("one", "two") == 0
    # longest common subsequence: the cat on the mat, 5 of 6 words on both sides
    assert rouge_l(*PAIRS[0]) == pytest.approx(5 / 6)
    # stems run, dog, run against a, run, dog, run: precision 3/3, recall 3/4
    assert rouge_l(*PAIRS[1]) == pytest.approx(2 * 0.75 / 1.75)
    # precision 1, recall 1/4
    assert rouge_l("one", "one two three four") == pytest.approx(2 * 0.25 / 1.25)


def test_score_keeps_items_in_order() -> None:
    assert score("exact_match", ["a", "b", "C"], ["a", "x", "c"]) == [1, 0, 1]
    assert score("rouge_l", ["one", "x"], ["one", "one"]) == [1, 0]
    with pytest.raises(ValueError, match="longer"):
        score("exact_match", ["a"], ["a", "b"])


LOADS_LITTLE = """
import sys, threading
import pytest
from forever.evaluation.metrics import rouge_l
from forever.evaluation.rouge import hidden

assert rouge_l("two cats", "two cat") == 1
assert not {"sklearn", "scipy"} & sys.modules.keys()
with hidden("sklearn"):
    with pytest.raises(ModuleNotFoundError) as raised:
        import sklearn
    assert raised.value.name == "sklearn"
    other = threading.Thread(target=__import__, args=["sklearn.cluster"])
    other.start()
    other.join()
    assert "sklearn.cluster" in sys.modules
import scipy
"""


def test_rouge_loads_a_stemmer_and_not_what_else_its_package_could_use() -> None:
    subprocess.run([sys.executable, "-c", LOADS_LITTLE], check=True)
