"""Where other keepers knock. Who does not lead says so; who leads takes them in."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.keeper.voice import Voice
from holdfast.stores.os_errors import store_errors
from holdfast.stores.wire import Channel
from holdfast.stores.wire_handshake import admit

log = logging.getLogger("holdfast")
_HANDSHAKE_SECONDS = 5.0
_CLOSE_SECONDS = 5.0
_STRANGERS_AT_ONCE = 1024


class Host(Protocol):
    def converse(self, voice: Voice, hello: dict[str, Any]) -> None:
        """In a thread of its own, until the connection ends."""
        ...


class Post:
    """Listens from the moment it is made. One thread per connection: one that hangs holds up nobody."""

    def __init__(self, address: str, token: bytes, clock: Clock, *, silence_seconds: float) -> None:
        self._token = token
        self._clock = clock
        self._silence = silence_seconds
        self._host: Host | None = None
        self._open: dict[socket.socket, threading.Thread] = {}
        self._changing = threading.Lock()
        self._is_closed = False
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with store_errors("listen for other keepers", address):
            self._listener = socket.create_server((address, 0), family=family, backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="holdfast-post", daemon=True)
        self._accepting.start()

    def hand_over(self, host: Host | None) -> None:
        """From now on `host` takes in who knocks; None: nobody does."""
        self._host = host

    def close(self) -> None:
        with self._changing:
            self._is_closed = True
            connections = dict(self._open)
        for each in (self._listener, *connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        end = self._clock.monotonic() + _CLOSE_SECONDS
        for thread in (self._accepting, *connections.values()):
            thread.join(max(end - self._clock.monotonic(), 0.0))
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if not self._is_closed:
                    log.warning("holdfast: this keeper takes no new connections: %s", error)
                return
            thread = threading.Thread(
                target=self._converse, args=(connection,), name="holdfast-post-guest", daemon=True
            )
            with self._changing:
                if not self._is_closed and len(self._open) < _STRANGERS_AT_ONCE:
                    self._open[connection] = thread
                    thread.start()
                    continue
            connection.close()

    def _converse(self, connection: socket.socket) -> None:
        try:
            # A guest that still waits for the hands of the dead may be silent for a while.
            patience = max(self._silence, _HANDSHAKE_SECONDS)
            channel = Channel(connection, self._clock, silence_seconds=patience)
            channel.limit(_HANDSHAKE_SECONDS)
            admit(channel, self._token)
            voice = Voice(channel)
            hello = voice.hear()
            channel.limit(None)
            host = self._host
            if host is None:
                voice.say({"answer": "not leading"})
            else:
                host.converse(voice, hello)
        except (OSError, HoldfastError) as error:
            # Keepers come and go, and strangers try; whoever cares has an error of its own.
            log.debug("holdfast: a connection to this keeper ended: %s", error)
        except Exception:
            log.exception("holdfast: a conversation with another keeper failed unexpectedly")
        finally:
            connection.close()
            with self._changing:
                self._open.pop(connection, None)
