"""Lets other nodes read what this node keeps, and add what it shall keep for them.

Why this is TCP and not a process group of torch.distributed is told in wire.py.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Any, Self

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, StoreError
from holdfast.stores.listener import Listener
from holdfast.stores.serve_verbs import Verbs
from holdfast.stores.store import CheckpointStore
from holdfast.stores.wire import SLOWEST_BYTES_PER_SECOND, Channel
from holdfast.stores.wire_errors import error_out
from holdfast.stores.wire_handshake import PURPOSE_STORE, admit, require_token, turn_away

_HANDSHAKE_SECONDS = 5.0


class NodeServer:
    """Serves until closed.

    >>> server = NodeServer({"local": node_store("/local/nvme/run")}, token, host="10.0.0.7")
    >>> server.address                      # what the other nodes give to RemoteStore
    ('10.0.0.7', 40123)
    """

    def __init__(
        self,
        stores: Mapping[str, CheckpointStore],
        token: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        clock: Clock | None = None,
        silence_seconds: float = 30.0,
        idle_seconds: float = 600.0,
        connections: int = 64,
    ) -> None:
        self._verbs = Verbs(stores)
        self._token = require_token(token)
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._silence = silence_seconds
        self._idle = idle_seconds
        self._room = connections
        # Admitted, and waiting for a request; longest first.
        self._resting: dict[socket.socket, None] = {}
        self._changing = threading.Lock()
        self._listener = Listener("node", host, port, self._converse, self._clock)
        self.address = self._listener.address
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving. Requests under way break off; whoever sent them asks another node."""
        self._listener.close()

    def _converse(self, connection: socket.socket) -> None:
        channel = Channel(connection, self._clock, silence_seconds=self._silence)
        channel.limit(_HANDSHAKE_SECONDS)
        if self._listener.admitted >= self._room and not self._resting:
            turn_away(channel)
            return
        admit(channel, self._token, PURPOSE_STORE)
        # Only for who belongs here: the one that has asked for nothing for longest makes room.
        if self._listener.admitted >= self._room and not self._send_one_home():
            return
        self._listener.admit(connection)
        while True:
            self._resting[connection] = None
            try:
                channel.wait(self._idle)
                request = channel.receive()
            finally:
                with self._changing:
                    self._resting.pop(connection, None)
            channel.limit(self._silence + _bytes_of(request) / SLOWEST_BYTES_PER_SECOND)
            self._answer(channel, request)

    def _send_one_home(self) -> bool:
        """Its owner connects again when it needs to, as after any pause."""
        with self._changing:
            oldest = next(iter(self._resting), None)
            if oldest is None:
                return False
            del self._resting[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)
        return True

    def _answer(self, channel: Channel, request: dict[str, Any]) -> None:
        try:
            self._verbs.answer(channel, request)
        except HoldfastError as error:
            if channel.to_send:
                # Half a body is out: no frame can be told from the rest of it.
                raise
            channel.discard_body()
            channel.send(error_out(error))
        if channel.to_send or channel.to_receive:
            raise StoreError(f"{request['verb']} left {channel.to_send} bytes owed")


def _bytes_of(request: dict[str, Any]) -> int:
    start, stop = request.get("start"), request.get("stop")
    asked = stop - start if type(start) is int and type(stop) is int else 0
    return int(request["body"]) + max(asked, 0)
