"""An HTTP proxy between a client and a real object store that fails on purpose, one request at a time."""

import http.client
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from holdfast.testing.object_servers import ObjectServer

# What can go wrong on the way there, at the server, and on the way back.
FAULTS = (
    "error before",  # answered with 500, the server never saw it
    "error after",  # the server did it, the client is told 500
    "cut before",  # the connection ends before the server saw anything
    "cut after",  # the server did it, the connection ends without an answer
    "cut in the body",  # half of the request's body reached the server
    "cut in the answer",  # half of the answer reached the client
    "twice",  # the server got it twice; the client hears the second answer
)


@dataclass(frozen=True)
class Fault:
    """One failure for the first request whose "METHOD path" matches. `then` is called at that moment."""

    request: str
    what: str
    then: Callable[[], None] | None = None


@dataclass
class FaultProxy:
    """`server` is where clients connect. `plan` is used up from anywhere in it; `happened` says what was."""

    server: ObjectServer
    plan: list[Fault] = field(default_factory=list)
    happened: list[tuple[str, str]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    # Asked for every request before the plan is; None lets it pass.
    decide: Callable[[int, str], Fault | None] = lambda number, request: None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, request: str) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            fault = self.decide(len(self.requests) - 1, request)
            if fault is None:
                fault = next((f for f in self.plan if re.search(f.request, request)), None)
                if fault is not None:
                    self.plan.remove(fault)
            if fault is not None:
                self.happened.append((request, fault.what))
            return fault


@contextmanager
def fault_proxy(behind: ObjectServer) -> Iterator[FaultProxy]:
    class Handler(_Relay):
        upstream = urlsplit(behind.endpoint).netloc

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        proxy = FaultProxy(replace(behind, endpoint=f"http://127.0.0.1:{listener.server_address[1]}"))
        Handler.proxy = proxy
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown()
            thread.join()


class _Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body in one packet: two small ones wait 40 ms for each other.
    wbufsize = -1
    disable_nagle_algorithm = True
    upstream: str
    proxy: FaultProxy

    def relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        fault = self.proxy.take(f"{self.command} {self.path}")
        what = fault.what if fault else ""
        if what == "cut before":
            return self._end(fault)
        if what == "error before":
            self._run(fault)
            return self._answer(500, {}, b"<Error><Code>InternalError</Code></Error>")
        if what == "cut in the body":
            self._forward(body, only=len(body) // 2)
            return self._end(fault)
        if what.startswith("say "):
            status, _, text = what[4:].partition(" ")
            return self._answer(int(status), {}, text.encode())
        if what == "twice":
            self._forward(body)
        status, headers, answer = self._forward(body)
        if what == "cut after":
            return self._end(fault)
        if what == "error after":
            self._run(fault)
            return self._answer(500, {}, b"<Error><Code>InternalError</Code></Error>")
        if what == "cut in the answer":
            self._answer(status, headers, answer, only=len(answer) // 2)
            return self._end(fault)
        self._run(fault)
        self._answer(status, headers, answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = relay

    def _forward(self, body: bytes, *, only: int | None = None) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(self.upstream, timeout=30)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    upstream.putheader(name, value)
            upstream.endheaders()
            upstream.send(body[:only])
            if only is not None:
                return 0, {}, b""
            answer = upstream.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, only: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body[:only])
        self.wfile.flush()

    def _end(self, fault: Fault | None) -> None:
        self._run(fault)
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _run(fault: Fault | None) -> None:
        if fault is not None and fault.then is not None:
            fault.then()

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            # The client was killed or gave up: that is what this proxy is for.
            self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass
