"""A tracking server that is no use: it is away, or answers with errors, or closes in mid-answer."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

DYING = ("away", "error", "cut", "dies")
_ERROR = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\nConnection: close\r\n\r\noops"
_CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n{"
_ANSWERED = 3  # requests, before one that "dies" is away


@contextmanager
def dying_server(kind: str) -> Iterator[str]:
    """The address of a server of this kind; "" is none."""
    if not kind:
        yield ""
        return
    server = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{server.getsockname()[1]}"
    if kind == "away":
        server.close()
        yield address
        return
    thread = threading.Thread(target=_serve, args=(server, kind))
    thread.start()
    try:
        yield address
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def _serve(server: socket.socket, kind: str) -> None:
    count = 0
    with suppress(OSError):
        while kind != "dies" or count < _ANSWERED:
            connection, _ = server.accept()
            count += 1
            with connection, suppress(OSError):
                connection.settimeout(5)
                connection.recv(65536)
                connection.sendall(_CUT if kind == "cut" else _ERROR)
        server.close()
