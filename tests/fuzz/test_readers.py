"""Files that people write may hold anything: a reader returns a value or raises an InputError.

The suite tries 100 cases a reader, the same ones each time; `make fuzz` sets FOREVER_FUZZ_CASES and
draws new ones.
"""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forever.config.overrides import dotted_keys, parse_assignments
from forever.config.run import RunConfig
from forever.data.check import read_tasks
from forever.errors import InputError
from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import load_run
from forever.yaml_file import to_yaml

CASES = os.environ.get("FOREVER_FUZZ_CASES")
cases = settings(
    max_examples=int(CASES or 100),
    derandomize=CASES is None,
    database=None,  # a failure prints the case that it came from
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
PIECES = (
    b"\0", b"\xff", b"\n", b'"', b"{", b"}", b"[", b"]", b": ", b"- ", b"&a ", b"*a", b"| ", b"#",
    b"!!int ", b"!!python/object:os.system ", b"<<: ", b"---\n", b"1e999", b"NaN", b"null", b"010",
    b'"\\ud800"', b"[" * 900, b"a" * 10_000,
)  # fmt: skip
RUN = to_yaml(load_run("superni/7/ssr").model_dump(mode="json")).encode()
SHIPPED = Path(__file__).parents[2] / "ablations" / "components.yaml"
SPACE = b"""
method: forever
space:
  optim.lr: {from: {times: 0.5}, to: {times: 2}, log: true}
  method.clock: {among: [model, steps], label: ''}
trials: 3
figures: [pareto, {kind: sensitivity, key: optim.lr, label: rate}]
"""
ROWS = [{"instruction": "Is it?", "input": str(i), "output": "y"} for i in range(6)]
TASKS = {
    "Definition": ["Do it."],
    "Instances": [{"input": str(i), "output": ["a"]} for i in range(6)],
}
# A task in several layouts: its training file, and the content of that and of the test file.
LAYOUTS: dict[str, bytes] = {
    "a/train.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in ROWS),
    "train/a.json": json.dumps(ROWS).encode(),
    "a/train.json": json.dumps(TASKS).encode(),
    "task001_a.json": json.dumps(TASKS).encode(),
}


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """A file that is cut, has parts removed or repeated, or has odd pieces in it."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 40)))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=20))
        changes = (content[:start], content[:end] + content[start:],
                   content[:start] + piece + content[end:])  # fmt: skip
        content = draw(st.sampled_from(changes))
    return content


@cases
@given(damaged(RUN))
def test_a_run(tmp_path: Path, content: bytes) -> None:
    """What is accepted survives being written."""
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with suppress(InputError):
        config = load_run(str(path))
        path.write_text(to_yaml(config.model_dump(mode="json")), encoding="utf-8")
        assert load_run(str(path)).fingerprint() == config.fingerprint()


@cases
@given(st.sampled_from(dotted_keys(RunConfig)), damaged(b"[1, {a: b}]"))
def test_an_assignment(key: str, value: bytes) -> None:
    with suppress(InputError):
        argument = f"{key}={value.decode('utf-8', 'surrogateescape')}"
        load_run("mini/forever").override(parse_assignments([argument]))


@cases
@given(st.sampled_from([SHIPPED.read_bytes(), SPACE]).flatmap(damaged))
def test_a_sweep(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with suppress(InputError):
        sweep = load_sweep(str(path))
        base = load_run(sweep.base_run("mini"))
        if not sweep.is_search:
            sweep.expand(base, (0,)).trials()


@cases
@given(st.data(), st.sampled_from(sorted(LAYOUTS)))
def test_a_task(tmp_path: Path, data: Any, name: str) -> None:
    root = tmp_path / "data"
    shutil.rmtree(root, ignore_errors=True)
    for split in ("test", "train"):  # the second is damaged
        path = root / "mine" / name.replace("train", split)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = LAYOUTS[name].replace(b'"input": "', f'"input": "{split} '.encode())
        path.write_bytes(content if split == "test" else data.draw(damaged(content)))
    with suppress(InputError):
        checked = read_tasks(root)
        assert checked.tasks or checked.problems
