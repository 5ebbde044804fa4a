"""The smallest client for a metadata service: one request, a short limit, a short answer, no proxies."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Mapping
from dataclasses import dataclass

MAX_ANSWER_BYTES = 64 << 10


@dataclass(frozen=True)
class Answer:
    status: int
    body: str
    headers: Mapping[str, str]


class MetadataService:
    """`address` is "host" or "host:port". Used from one thread; `close` from any."""

    def __init__(self, address: str, *, timeout: float = 2.0) -> None:
        self._address = address
        self._timeout = timeout
        self._connection: http.client.HTTPConnection | None = None
        self._closed = False

    def ask(
        self, path: str, headers: Mapping[str, str], *, method: str = "GET", waits: float = 0.0
    ) -> Answer:
        """Raises OSError without an answer. `waits`: how long the service itself may hold the request."""
        connection = http.client.HTTPConnection(self._address, timeout=self._timeout + waits)
        self._connection = connection
        try:
            if self._closed:
                raise ConnectionAbortedError("closed")
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            body = response.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
            return Answer(response.status, body, {k.lower(): v for k, v in response.getheaders()})
        except http.client.HTTPException as error:
            raise ConnectionError(f"{self._address} does not speak HTTP: {error!r}") from error
        finally:
            connection.close()

    def close(self) -> None:
        self._closed = True
        waiting = self._connection.sock if self._connection is not None else None
        if waiting is not None:
            with contextlib.suppress(OSError):
                waiting.shutdown(socket.SHUT_RDWR)
