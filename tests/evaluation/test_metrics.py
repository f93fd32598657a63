"""Scores against hand values and against rouge-score itself."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from rouge_score.rouge_scorer import RougeScorer

from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix, scores_after
from forever.scores import (
    METRICS,
    choice,
    edit_similarity,
    exact_match,
    known_metric,
    numeric,
    rouge_l,
    score,
    token_f1,
    with_digest,
)

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


def test_token_f1_by_hand() -> None:
    assert token_f1("The Eiffel Tower!", "eiffel tower") == 1
    # cat, sat, cat against cat, cat, ran: two are shared, of three and three
    assert token_f1("cat sat cat", "cat cat ran") == pytest.approx(2 / 3)
    # one word of three shared, one of one: precision 1/3, recall 1
    assert token_f1("in Paris, France", "Paris") == pytest.approx(2 * (1 / 3) / (1 / 3 + 1))
    assert token_f1("red", "blue") == 0
    assert token_f1("the", "a") == 1  # nothing is left of either
    assert token_f1("", "blue") == token_f1("blue", "the") == 0


def test_edit_similarity_by_hand() -> None:
    assert edit_similarity(" x = 1\n", "x = 1") == 1
    assert edit_similarity("abcd", "bcde") == pytest.approx(2 * 3 / 8)  # bcd
    assert edit_similarity("abc", "xyz") == 0
    assert edit_similarity("", "") == 1
    # A character that is frequent in a long text counts as others do.
    assert edit_similarity("x" * 300, "x" * 300 + "y" * 100) == pytest.approx(600 / 700)


def test_numeric_takes_the_last_number() -> None:
    for same in [
        ("5 + 7 = 12, so 12 apples", "#### 12"),
        ("1,234,567", "1234567.0"),
        ("it costs $2.50", "2.5"),
        ("-3", "x = -3"),
        ("10-3", "3"),
        (".5", "0.50"),
        ("7.", "7"),
        ("1,2,3", "3"),
    ]:
        assert numeric(*same) == 1, same
    for other in [("12 of 13", "12"), ("-3", "3"), ("twelve", "12"), ("none", "none"), ("", "0")]:
        assert numeric(*other) == 0, other


def test_choice_compares_the_letter() -> None:
    for same in [("Answer: C. Because it is", "C"), ("B\nso", "(B)"), ("B", "Answer: B")]:
        assert choice(*same) == 1, same
    for other in [("A", "B"), ("Because", "B"), ("", "B"), ("c", "C"), ("none", "none")]:
        assert choice(*other) == 0, other


@pytest.mark.parametrize("name", METRICS)
def test_the_right_answer_scores_one_and_another_less(name: str) -> None:
    assert score(name, ["B 12"], ["B 12"]) == [1]
    assert score(name, ["C 13"], ["B 12"])[0] < 1


OWN = "def half(prediction, reference): return 0.5 * (prediction == reference)\n"
OWN += "def two(prediction, reference): return 2\n"
OWN += "def raises(prediction, reference): return 1 / 0\n"


def test_a_function_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a file of the working directory, whose digest is part of the name of the metric."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_metric_1.py").write_text(OWN, encoding="utf-8")
    name = with_digest(known_metric("own_metric_1:half"))
    assert name == f"own_metric_1:half@{sha256(OWN.encode()).hexdigest()[:12]}"
    assert score(name, ["a", "b"], ["a", "a"]) == [0.5, 0]
    assert sys.path[0] != str(tmp_path)
    with pytest.raises(InputError, match="changed"):
        score("own_metric_1:half@000000000000", ["a"], ["a"])
    with pytest.raises(InputError, match="gave 2"):
        score(with_digest("own_metric_1:two"), ["a"], ["a"])
    with pytest.raises(InputError, match="ZeroDivisionError"):
        score(with_digest("own_metric_1:raises"), ["a"], ["a"])
    with pytest.raises(InputError, match="'third'"):
        with_digest("own_metric_1:third")
    (tmp_path / "own_metric_2.py").write_text("1 +", encoding="utf-8")
    with pytest.raises(InputError, match="SyntaxError"):
        with_digest("own_metric_2:half")


def test_a_configuration_names_no_function_of_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("shutil:move", "os.path:join"):
        with pytest.raises(InputError, match=name.partition(":")[0]):
            with_digest(known_metric(name))
    (tmp_path / "json.py").write_text(OWN, encoding="utf-8")
    with pytest.raises(InputError, match=r"rename json\.py"):
        with_digest("json:half")
    for name in ("exact-match", "a b:c", "m:f@05e13aab1b71", "m:f:g", ".m:f"):
        with pytest.raises(InputError, match="unknown metric"):
            known_metric(name)


def test_score_keeps_items_in_order() -> None:
    assert score("exact_match", ["a", "b", "C"], ["a", "x", "c"]) == [1, 0, 1]
    assert score("rouge_l", ["one", "x"], ["one", "one"]) == [1, 0]
    with pytest.raises(ValueError, match="longer"):
        score("exact_match", ["a"], ["a", "b"])


LOADS_LITTLE = """
import sys, threading
import pytest
from forever.scores import hidden, rouge_l

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
