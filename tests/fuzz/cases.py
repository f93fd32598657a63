"""What the fuzz tests share: how many cases a reader gets, what damages a file, and the measure.

A test of a reader is

    @cases
    @given(damaged(VALID))              # or: hostile_values, changed(VALUES)
    def test_a_damaged_thing(content: bytes) -> None:
        path.write_bytes(content)
        attempt(lambda: read_thing(path))

`attempt` returns what the reader returns, or None if it refused by an InputError. Any other
exception is what these tests look for and goes through; a message without end fails, and so does a
reader that computes for longer than SECONDS.

The suite tries 300 cases a reader, the same ones each time; `make fuzz` sets FOREVER_FUZZ_CASES to
10,000 and draws new ones. Files go into a folder of the test's own, written anew for each case:
`tmp_path` will do, which all cases of a test share.
"""

import copy
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from forever.errors import InputError

T = TypeVar("T")

ASKED = os.environ.get("FOREVER_FUZZ_CASES")
SECONDS = 5.0  # of computing, which a busy machine does not make longer
LONGEST_MESSAGE = 5000  # which may name long paths and all keys that are valid

cases = settings(
    max_examples=int(ASKED or 300),
    derandomize=ASKED is None,  # the suite tries the same cases each time
    database=None,  # a failure prints the case that it came from
    deadline=None,  # `attempt` measures
    suppress_health_check=list(HealthCheck),
)


def attempt(read: Callable[[], T]) -> T | None:
    """What a reader returns, or None if it refuses; it must not take long."""
    began = time.process_time()
    try:
        return read()
    except InputError as error:
        message = str(error)
        assert message
        assert len(message) <= LONGEST_MESSAGE, message
        return None
    finally:
        seconds = time.process_time() - began
        if seconds > SECONDS:
            pytest.fail(f"the reader took {seconds:.1f} s; the limit is {SECONDS:g} s")


# ---- hostile values

# Each has broken a reader somewhere.
TEXTS = (
    "", " ", "\n", "\0", "\ud800", "\x1b[2J", "..", "../../x", "/etc/passwd", "~", "~nobody-here/x",
    "a" * 300, "a" * 100_000, "[/b]", "$x_{$", "<script>", "NaN", "1e999", "-0", "010", "yes",
    "null", "\u2028", "\ufeff", "ﬀ", "{seed}", "%s", "__class__", "name", "C:\\x", "con",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 2**31, 2**53 + 1, 2**64, -(2**63), 10**12, 10**400, 1e-320, 1e30, 1e308, -0.0,
    0.5, float("inf"), float("-inf"), float("nan"), True, False, None,
)  # fmt: skip

_texts = st.sampled_from(TEXTS) | st.text(max_size=20)
_numbers = st.sampled_from(NUMBERS) | st.integers() | st.floats()
scalars = _texts | _numbers
keys = st.sampled_from(("name", "path", "seed", "method", "", "..", "a.b")) | st.text(max_size=8)
# Values as JSON has them, small but of any shape.
hostile_values = st.recursive(
    scalars,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(keys, values, max_size=3),
    max_leaves=6,
)


@st.composite
def changed(draw: st.DrawFn, valid: Any) -> Any:
    """`valid`, made of mappings and lists, with some values replaced, added or taken away."""
    values = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        place: Any = values
        while True:
            steps = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not steps:
                break
            step = draw(st.sampled_from(steps))
            if isinstance(place[step], dict | list) and place[step] and draw(st.booleans()):
                place = place[step]
                continue
            kind = draw(st.sampled_from(("replace", "replace", "replace", "remove", "add")))
            if kind == "replace":
                place[step] = draw(hostile_values)
            elif kind == "remove":
                del place[step]
            elif isinstance(place, dict):
                place[draw(keys)] = draw(hostile_values)
            else:
                place.append(draw(hostile_values))
            break
    return values


# ---- damaged files

PIECES = (
    b"\0", b"\xff", b"\xff\xfe", b"\xed\xa0\x80", b"\n", b"\r", b"\t", b'"', b"'", b"{", b"}", b"[",
    b"]", b":", b",", b"-", b"- ", b": ", b"&a ", b"*a", b"!!int ", b"!!python/object:os.system ",
    b"<<: ", b"? ", b"| ", b"#", b"---\n", b"%YAML 9\n", b"[" * 3000, b'{"a":' * 3000, b"9" * 5000,
    b"1e999", b"NaN", b"-Infinity", b"true", b"null", b"010", b"yes", b"2020-99-99", b'"\\ud800"',
    b"a" * 100_000, b"\xe2\x80\xa8", b"\xef\xbb\xbf",
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """A file that is cut, has bytes flipped, parts repeated or moved, or hostile pieces put in."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 40)))
        kind = draw(st.sampled_from(("cut", "flip", "piece", "piece", "repeat", "remove", "bytes")))
        if kind == "cut":
            content = content[:start]
        elif kind == "flip" and start < len(content):
            flipped = content[start] ^ (1 << draw(st.integers(0, 7)))
            content = content[:start] + bytes([flipped]) + content[start + 1 :]
        elif kind == "piece":
            content = content[:start] + draw(st.sampled_from(PIECES)) + content[end:]
        elif kind == "repeat":
            content = content[:end] + content[start:]
        elif kind == "remove":
            content = content[:start] + content[end:]
        elif kind == "bytes":
            content = content[:start] + draw(st.binary(max_size=20)) + content[end:]
    return content
