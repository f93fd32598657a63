"""YAML that people write means what it means in YAML 1.2; what is refused is named by its line."""

from pathlib import Path

import pytest
import yaml

from forever.config.overrides import parse_assignments
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.sweeps.named_runs import load_run
from forever.yaml_file import YamlFile, read_value, to_yaml

# A file, the line that is wrong, and the key.
REFUSED = [
    ("seed: 1\nseed: 2", 2, ""),
    ("optim:\n lr: 1\n lr: 2", 3, ""),
    ("1: 2", 1, ""),
    ("[1]: 2", 1, ""),
    ("seed: !!int x", 1, ""),
    ("seed: !!python/object:os.system x", 1, ""),
    ("optim:\n lr: [1\n", 3, ""),
    ("optim: &a [*a]", 1, ""),
    ("seed: 1\noptim: " + "[" * 120_000, 2, ""),
    ("seed: 1\noptim:\n " + "- " * 60_000, 3, ""),
    ("seed: 1\noptim: {<<: {lr: 1}}", 2, "optim.<<"),
    ("seed: 1:30", 1, "seed"),
    ("seed: true", 1, "seed"),
    ("evaluation:\n  forward_transfer: yes", 2, "evaluation.forward_transfer"),
    ("evaluation: {forward_transfer: 1}", 1, "evaluation.forward_transfer"),
    ("optim:\n lr: 1e30", 2, "optim.lr"),
    ("optim:\n lrr: 1", 2, "optim.lrr"),
    ("model:\n rank: 1000000000000", 2, "model.rank"),
    ("seed: 1\nmodel:\n targets: []", 2, "model"),
    ("model:\n adapter: {r: .inf}", 2, "model.adapter.r"),
    ("data:\n benchmark: ../outside", 2, "data.benchmark"),
    ("data:\n benchmark: /etc", 2, "data.benchmark"),
]


@pytest.mark.parametrize(("text", "line", "key"), REFUSED)
def test_what_is_refused_is_named_by_line_and_key(
    text: str, line: int, key: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"line {line}: ") as refused:
        load_run(str(path))
    error = refused.value
    assert (error.path, error.line, error.key) == (path, line, key)


@pytest.mark.parametrize("content", [b"seed: 1\n# caf\xe9\n", "\nseed: 1".encode("utf-16")])
def test_a_file_must_be_utf8(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        load_run(str(path))
    assert refused.value.line == content[: content.find(b"\xe9") + 1].count(b"\n") + 1


@pytest.mark.parametrize("content", ["a: 1\n" * 40_000, "- 1", "text", ""])
def test_a_file_must_be_a_mapping_of_a_limited_size(content: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"run\.yaml"):
        load_run(str(path))
    with pytest.raises(InputError, match=r"nosuch\.yaml"):
        load_run(str(tmp_path / "nosuch.yaml"))


def test_plain_values_mean_what_yaml_1_2_says() -> None:
    text = """
        numbers: [1, -2, 0x10, 010, 0.5, 1e-3, 1.0e+3, 0, .inf]
        words: [yes, off, '010', "true", 2020-01-02, 1.2.3, a:b, 1_000, 1:30, "null"]
        others: [true, False, null, ~, ]
        again: &again {a: [1]}
        same: [*again, *again]
    """
    values = read_value(text)
    assert values == {
        "numbers": [1, -2, 16, 10, 0.5, 1e-3, 1000.0, 0, float("inf")],
        "words": [
            "yes", "off", "010", "true", "2020-01-02", "1.2.3", "a:b", "1_000", "1:30", "null"
        ],
        "others": [True, False, None, None],
        "again": {"a": [1]},
        "same": [{"a": [1]}] * 2,
    }  # fmt: skip
    assert isinstance(values["numbers"][5], float)


@pytest.mark.parametrize(
    "text",
    ["1e999", "1e-3", "08", "010", "-1E5", "+3", ".5", "1_0", "2024-1-1", "~", "yes", "a\nb"],
)
def test_text_that_looks_like_a_number_survives_being_written(text: str) -> None:
    written = to_yaml({"a": text, text: [text]})
    assert read_value(written) == {"a": text, text: [text]}
    assert yaml.safe_load(written) == {"a": text, text: [text]}  # for tools of YAML 1.1


@pytest.mark.parametrize("folder", ["ablations", "experiments"])
def test_files_of_this_repository_are_the_same_in_both_versions_of_yaml(folder: str) -> None:
    for path in sorted((Path(__file__).parents[2] / folder).rglob("*.yaml")):
        assert YamlFile.read(path).values == yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("argument", "key"),
    [
        ("optim.lr=!!int x", "optim.lr"),
        ("model.name=\udcff", "model.name"),
        ("optim={lr: 1, lr: 2}", "optim"),
        ("a=[1,", "a"),
        ("optim.lr", ""),
        ("model={rank: true}", "model.rank"),
        ("evaluation.forward_transfer=on", "evaluation.forward_transfer"),
    ],
)
def test_what_is_refused_in_an_assignment(argument: str, key: str) -> None:
    with pytest.raises(InputError) as refused:
        RunConfig().override(parse_assignments([argument]))
    assert refused.value.key == key
    assert str(refused.value).isprintable()
