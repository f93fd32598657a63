"""`forever data check` shows what a model sees: tokens, what is supervised, what is cut."""

from pathlib import Path

import pytest
from commands import Call, document
from helpers import saved
from rich.console import Console

from forever.cli.view.examples import Examples, choose
from forever.config.run import RunConfig
from forever.data.encoding import Encoder
from forever.data.prompts import ALPACA
from forever.data.tasks import Example, Task
from forever.models.loading import load_tokenizer


@pytest.fixture(scope="module")
def encoder(backbone_folder: Path) -> Encoder:
    return Encoder(load_tokenizer(str(backbone_folder)), 64)


def example(number: int, words: int, answer: str = "red") -> Example:
    text = " ".join(["blue", "round"] * (words // 2))
    return Example(f"a/train/{number}", "What colour is it?", text, answer)


def test_examples_are_shown_as_they_are_encoded(encoder: Encoder) -> None:
    rows = (example(0, 2), example(1, 4, "blue"), example(2, 60))
    task = Task("a", rows, rows[:1], "exact_match")
    told = Examples("a", task, encoder, 3).data()["examples"]
    for row, shown in zip(rows, told, strict=True):
        encoded = encoder.encode(row)
        assert shown["id"] == row.id
        assert (len(shown["prompt"]), len(shown["supervised"])) == (
            len(encoded.prompt),
            len(encoded.answer),
        )
        assert shown["supervised"][-1] == "<eos>"
        assert shown["supervised"][0] == row.output
    whole = encoder.count(ALPACA.text(rows[2]))
    assert [shown["cut"] for shown in told] == [0, 0, whole - len(encoder.encode(rows[2]).prompt)]
    assert told[2]["cut"] > 0


def test_a_person_sees_where_something_is_cut_and_what_is_learned(encoder: Encoder) -> None:
    rows = (example(0, 2), example(1, 60))
    console = Console(width=400)
    with console.capture() as captured:
        console.print(Examples("a", Task("a", rows, rows, "exact_match"), encoder, 2))
    first, shown, second, cut = captured.get().splitlines()
    assert first.strip().endswith("2 of them supervised")
    assert "blue│round" in shown
    assert shown.strip().endswith("⟦red│<eos>⟧")
    tokens = encoder.count(ALPACA.text(rows[1])) - len(encoder.encode(rows[1]).prompt)
    assert f"; {tokens} are cut" in second
    before, after = cut.split(f"✂ {tokens} tokens are cut")
    assert before.rstrip("│").endswith(("blue", "round"))
    assert after.lstrip("│").startswith(("blue", "round"))


def test_examples_have_different_answers_and_the_longest_is_there() -> None:
    rows = [*(example(number, 2) for number in range(5)), example(5, 2, "blue"), example(6, 9)]
    assert [row.id[-1] for row in choose(rows, 3)] == ["0", "5", "6"]
    assert choose(rows, 0) == []


def test_a_run_is_checked_with_its_model(
    base_config: RunConfig, data_root: Path, tmp_path: Path, call: Call
) -> None:
    words = ["data", "check", saved(base_config, tmp_path / "toy.yaml")]
    told = document(call, *words, "--task", "shape", "--examples", "2")
    assert [*told["examples"]] == ["shape"]
    assert len(told["examples"]["shape"]["examples"]) == 2
    assert told["lengths"]["rows"][0]["cut in training"] == 0
    short = saved(base_config.override({"model.max_length": 50}), tmp_path / "short.yaml")
    (row,) = document(call, "data", "check", short, "--task", "shape")["lengths"]["rows"]
    assert row["cut in training"] > 0
    # A folder has no model of its own; one may be named.
    folder = ["data", "check", str(data_root)]
    assert "examples" not in document(call, *folder)
    named = document(call, *folder, "--model", base_config.model.name)
    assert [*named["examples"]] == ["colour", "shape", "weight"]


def test_a_hubs_model_that_is_not_here_is_none(
    data_root: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    code, printed, errors = call("data", "check", str(data_root), "--model", "someone/else")
    assert (code, errors) == (0, "")
    said = " ".join(printed.split())
    assert "Tokens are not shown: model.name: 'someone/else' is not on this machine" in said
