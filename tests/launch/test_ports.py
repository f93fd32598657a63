import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from forever.errors import InputError
from forever.launch import ports
from forever.launch.ports import LOOPBACK, free_ports, is_free

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_are_free_and_differ() -> None:
    given = free_ports(6)
    assert len({*given}) == 6
    with ExitStack() as open_ones:
        for port in given:
            open_ones.enter_context(socket.create_server((LOOPBACK, port)))
            assert not is_free(port)


@pytest.mark.skipif(not RANGE.is_file(), reason="only Linux says which ports it gives")
def test_they_are_none_that_somebody_is_given_who_asks_for_any() -> None:
    """Ray's own servers do, between the choice of the dashboard's port and its start."""
    first, last = map(int, RANGE.read_text().split())
    if first < 30_000:
        pytest.skip(f"this machine gives {first} to {last}, not Linux's usual 32768 to 60999")
    assert not {*free_ports(50)} & {*range(first, last + 1)}


def test_those_that_are_taken_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    start, *_ = free_ports(1)
    monkeypatch.setattr(ports, "_PORTS", range(start, start + 2))
    monkeypatch.setattr(ports, "_TRIES", 2)
    with socket.create_server((LOOPBACK, start)):
        monkeypatch.setattr(ports, "is_free", lambda port: port != start + 1 and is_free(port))
        with pytest.raises(InputError, match="has no free port on "):
            free_ports(1)
        monkeypatch.setattr(ports, "is_free", lambda port: port == start + 1 or is_free(port))
        assert free_ports(1) == [start + 1]
