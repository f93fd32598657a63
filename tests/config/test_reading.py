"""Files that people write: what has two meanings, no end or no text is refused with its line."""

import time
from pathlib import Path

import pytest
import yaml

from forever.config.overrides import parse_assignments
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.sweeps.named_runs import load_run
from forever.yaml_file import YamlFile, read_value, to_yaml


def bomb(levels: int = 9) -> str:
    """A kilobyte that means nine to the power of `levels` values."""
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, levels):
        inside = ", ".join([f"*a{level - 1}"] * 9)
        text += f"a{level}: &a{level} [{inside}]\n"
    return text


# A file, with / for the end of a line; the line that is wrong; and what is said of it.
REFUSED = """
seed: 1/seed: 2 | 2 | 'seed' occurs twice
optim:/ lr: 1/ lr: 2 | 3 | 'lr' occurs twice
seed: 010 | 1 | 010 has two meanings; write it as a decimal number, or '010' in quotes
seed: 1/optim: {epochs: 08} | 2 | 08 has two meanings
seed: 1:30 | 1 | 1:30 has two meanings
optim: {epochs: yes} | 1 | yes has two meanings; write true, or 'yes' in quotes
evaluation:/ forward_transfer: off | 2 | off has two meanings; write false
seed: true | 1 | seed=True: input should be a number
optim:/ lr: true | 2 | optim.lr=True: input should be a number
evaluation: {forward_transfer: 1} | 1 | evaluation.forward_transfer=1: input should be a valid bool
seed: !!int x | 1 | the tag 'tag:yaml.org,2002:int' is not read
seed: !!binary x | 1 | the tag 'tag:yaml.org,2002:binary'
1: 2 | 1 | the key 1 must be text; put it in quotes
[1]: 2 | 1 | a key must be text, not a list
optim: {<<: {lr: 1}} | 1 | keys are not merged by <<
model: {name: "\\ud800"} | 1 | '\\ud800' has half of a surrogate pair
model: {name: "\\0"} | 1 | has a NUL character
optim:/ lr: [1 | 2 | not valid YAML
optim: &a [*a] | 1 | more than 20000 values, or more than 30 levels
optim:/ lr: 1e30 | 2 | optim.lr=1e+30: input should be at most 10
model:/ rank: 1000000000000 | 2 | model.rank=1000000000000: input should be at most 16384
optim:/ epochs: 1000000000 | 2 | optim.epochs=1000000000: input should be at most 100000
model:/ targets: [] | 1 | model: targets names no layer
model:/ adapter: {r: .inf} | 2 | model.adapter.r=inf: input should be a finite number
data:/ benchmark: ../outside | 2 | data.benchmark: '../outside' is no folder in data.root
data:/ benchmark: /etc | 2 | data.benchmark: '/etc' is no folder in data.root
data:/ benchmark: a/../../b | 2 | is no folder in data.root
optim:/ lrr: 1 | 2 | unknown key 'optim.lrr'; did you mean 'optim.lr'?
"""


@pytest.mark.parametrize("wrong", REFUSED.strip().splitlines())
def test_what_is_refused_in_a_configuration(wrong: str, tmp_path: Path) -> None:
    text, line, message = wrong.split(" | ")
    path = tmp_path / "run.yaml"
    if "/etc" not in text and "../" not in text:
        text = text.replace("/", "\n")
    else:
        text = text.replace(":/ ", ":\n ")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        load_run(str(path))
    assert str(refused.value).startswith(f"{path}, line {line}: ")
    assert message in str(refused.value)


ENDLESS = {
    "bomb": bomb(),
    "deep": "a: " + "[" * 3000,
    "long": "a: 1\n" * 40_000,
    "digits": "seed: " + "9" * 5000,
    "many": "a: [" + "1," * 30_000 + "1]",
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_yaml_without_end_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(ENDLESS[kind], encoding="utf-8")
    began = time.process_time()
    with pytest.raises(InputError):
        load_run(str(path))
    assert time.process_time() - began < 5


@pytest.mark.parametrize("content", [b"seed: 1\n# caf\xe9\n", "seed: 1".encode("utf-16")])
def test_a_file_that_is_no_text(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"run\.yaml, line [12]: byte 0x.. is not UTF-8"):
        load_run(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="there is no file"):
        load_run(str(path))


def test_what_is_read_is_what_is_meant() -> None:
    text = """
        numbers: [1, -2, 0x10, 1_000, 0.5, 1e-3, 1.0e+3, 0]
        words: [yesterday, '010', "yes", 2020-01-02, 1.2.3, a:b, "null"]
        others: [true, False, null, ~, ]
        again: &again {a: [1]}
        same: [*again, *again]
    """
    values = read_value(text)
    assert values == {
        "numbers": [1, -2, 16, 1000, 0.5, 1e-3, 1000.0, 0],
        "words": ["yesterday", "010", "yes", "2020-01-02", "1.2.3", "a:b", "null"],
        "others": [True, False, None, None],
        "again": {"a": [1]},
        "same": [{"a": [1]}] * 2,
    }
    assert isinstance(values["numbers"][5], float)


@pytest.mark.parametrize(
    "text", ["1e999", "1e-3", "08", "010", "-1E5", "+3", ".5", "1_0", "2024-1-1", "~"]
)
def test_text_that_looks_like_a_number_survives_being_written(text: str) -> None:
    assert read_value(to_yaml({"a": text, text: [text]})) == {"a": text, text: [text]}


@pytest.mark.parametrize("folder", ["ablations", "experiments"])
def test_files_of_this_repository_are_read_as_yaml_reads_them(folder: str) -> None:
    for path in sorted((Path(__file__).parents[2] / folder).rglob("*.yaml")):
        assert YamlFile.read(path).values == yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seed=010"], "'seed=010': 010 has two meanings"),
        (["optim.epochs=yes"], "'optim.epochs=yes': yes has two meanings"),
        (["seed=" + "9" * 5000], "a number of 5000 characters is too long"),
        (["optim.lr=!!int x"], "the tag 'tag:yaml.org,2002:int' is not read"),
        (["model.name=\udcff"], "not valid YAML"),
        (["optim={lr: 1, lr: 2}"], "'lr' occurs twice"),
        (["model={rank: true}"], "model.rank=True: input should be a number"),
        (["data.order=2020-99-99", "seed=true"], "seed=True: input should be a number"),
    ],
)
def test_what_is_refused_in_an_assignment(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError) as refused:
        RunConfig().override(parse_assignments(arguments))
    assert message in str(refused.value)
    assert str(refused.value).isprintable()
