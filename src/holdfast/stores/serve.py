"""Lets other nodes read what this node keeps, and add what it shall keep for them.

One thread for each connection, so a client that hangs holds up nobody but itself. Why this is TCP and not a
process group of torch.distributed is told in wire.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Self

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, StoreError
from holdfast.stores.base import Store
from holdfast.stores.os_errors import store_errors
from holdfast.stores.serve_verbs import Verbs
from holdfast.stores.wire import SLOWEST_BYTES_PER_SECOND, Channel
from holdfast.stores.wire_errors import error_out
from holdfast.stores.wire_handshake import admit, require_token, turn_away

log = logging.getLogger("holdfast")
_HANDSHAKE_SECONDS = 5.0
_CLOSE_SECONDS = 5.0


class NodeServer:
    """Serves until closed.

    >>> server = NodeServer({"local": NodeStore("/local/nvme/run")}, token, host="10.0.0.7")
    >>> server.address                      # what the other nodes give to RemoteStore
    ('10.0.0.7', 40123)
    """

    def __init__(
        self,
        stores: Mapping[str, Store],
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
        self._open: dict[socket.socket, threading.Thread] = {}
        self._changing = threading.Lock()
        self._is_closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with store_errors("listen for other nodes", f"{host}:{port}"):
            self._listener = socket.create_server((host, port), family=family, backlog=128)
        bound = self._listener.getsockname()
        self.address: tuple[str, int] = (bound[0], bound[1])
        self._accepting = threading.Thread(target=self._accept, name="holdfast-serve-accept", daemon=True)
        self._accepting.start()
        _servers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving. Requests under way break off; whoever sent them asks another node."""
        with self._changing:
            self._is_closed = True
            connections = dict(self._open)
        for each in (self._listener, *connections):
            # Wakes the thread that waits on it; closing alone would not.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        end = self._clock.monotonic() + _CLOSE_SECONDS
        for thread in (self._accepting, *connections.values()):
            if thread is not threading.current_thread():
                thread.join(max(end - self._clock.monotonic(), 0.0))
        self._listener.close()

    def _accept(self) -> None:
        for number in range(1, 1 << 62):
            try:
                connection, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if not self._is_closed:
                    log.warning("holdfast: this node serves no new connections: %s", error)
                return
            thread = threading.Thread(
                target=self._converse, args=(connection,), name=f"holdfast-serve-{number}", daemon=True
            )
            with self._changing:
                if not self._is_closed:
                    self._open[connection] = thread
                    thread.start()
                    continue
            connection.close()

    def _converse(self, connection: socket.socket) -> None:
        try:
            channel = Channel(connection, self._clock, silence_seconds=self._silence)
            channel.limit(_HANDSHAKE_SECONDS)
            if len(self._open) > self._room:
                turn_away(channel)
                return
            admit(channel, self._token)
            while True:
                channel.wait(self._idle)
                request = channel.receive()
                channel.limit(self._silence + _bytes_of(request) / SLOWEST_BYTES_PER_SECOND)
                self._answer(channel, request)
        except (OSError, HoldfastError) as error:
            # Clients come and go, and strangers try; whoever was served has an error of its own.
            log.debug("holdfast: a connection to this node ended: %s", error)
        except Exception:
            log.exception("holdfast: serving another node failed unexpectedly")
        finally:
            connection.close()
            with self._changing:
                self._open.pop(connection, None)

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


# A forked DataLoader worker that outlives a killed trainer would keep the port, and its silence would pass
# for a node that hangs: the copies of our sockets in a child are closed at once.
_servers: weakref.WeakSet[NodeServer] = weakref.WeakSet()


def _drop_in_child() -> None:
    for server in list(_servers):
        for connection in (server._listener, *server._open):
            connection.close()


os.register_at_fork(after_in_child=_drop_in_child)
