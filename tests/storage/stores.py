"""An S3 server on loopback that can fail."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from forever.launch.local import Placement

SAVED = Placement(device="cpu", checkpoint_s=0.0)  # a checkpoint after every update
Become = Callable[[int], None]  # see the fixture `machine`
BUCKET = "bucket"
OUT = f"s3://{BUCKET}/runs"
KEYS = {"AWS_ACCESS_KEY_ID": "testing-id", "AWS_SECRET_ACCESS_KEY": "testing-secret"}


class Server:
    """An S3 server; `fail` is what it answers with instead, and `down` is nobody at its port."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self.app: Any = DomainDispatcherApplication(create_backend_app)
        self.fail = 0  # an HTTP status
        self.port = 0
        self._server: Any = None
        self.up()

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if self.fail:
            start_response(f"{self.fail} of a test", [("Content-Length", "0")])
            return [b""]
        return self.app(environ, start_response)

    def up(self) -> None:
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, type: str, message: str, *args: object) -> None:
                pass

        if self._server is None:
            handler = {"threaded": True, "request_handler": Quiet}
            self._server = make_server("127.0.0.1", self.port, self, **handler)
            self.port = self._server.port
            threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def down(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{self.port}", region_name="us-east-1"
        )

    def keys(self, prefix: str = "") -> list[str]:
        """The names of all objects."""
        pages = self.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return [content["Key"] for content in pages.get("Contents", ())]

    def read(self, address: str) -> bytes:
        """The content of an object."""
        key = address.removeprefix(f"s3://{BUCKET}/")
        return self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def write(self, address: str, content: bytes) -> None:
        """Replace an object."""
        key = address.removeprefix(f"s3://{BUCKET}/")
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def take_lease(self, address: str, count: int = 1, ttl_s: float = 0.6) -> None:
        """Be another machine that works at an address."""
        lease = {"owner": "far", "holder": "process 7 on far", "count": count, "ttl_s": ttl_s}
        self.write(f"{address}/.lease.json", json.dumps(lease).encode())

    def owner(self, address: str) -> str:
        """Who wrote at an address last."""
        return json.loads(self.read(f"{address}/.lease.json"))["owner"]


def beat_until(over: threading.Event, s3: Server, address: str) -> None:
    """Hold a lease as another machine that is alive."""
    count = 1
    while not over.is_set():
        s3.take_lease(address, count, ttl_s=6)  # far above a pause of a busy machine
        count += 1
        time.sleep(0.1)
