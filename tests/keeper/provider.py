"""The metadata service of one machine, as Google speaks it: requests wait until the machine is preempted."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit


class Provider(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Service)
        self.preempted = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    @property
    def spot(self) -> dict[str, str]:
        """For a keeper's environment."""
        return {"SPOT": f"gcp@127.0.0.1:{self.server_address[1]}"}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.preempted.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Service(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        value = "NONE"
        if url.path.endswith("/preempted"):
            self.server.preempted.wait(float(parse_qs(url.query)["timeout_sec"][0]))
            value = "TRUE" if self.server.preempted.is_set() else "FALSE"
        self.send_response(200)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("ETag", f"etag-{value}")
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the keeper has left
            super().handle()
