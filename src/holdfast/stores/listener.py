"""Takes connections in, one thread for each, so that a peer that hangs holds up nobody but itself."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.stores.os_errors import store_errors

log = logging.getLogger("holdfast")
_CLOSE_SECONDS = 5.0
# Connections that have not proved anything yet. One more, and the oldest of them goes: whoever opens many and
# says nothing shuts out only itself, because an honest handshake takes milliseconds.
_MOST_STRANGERS = 128


class Listener:
    """Bound from the moment it is made; who connects is taken in from `start` until `close`.

    `converse(connection)` runs in the connection's own thread and may raise whatever ends it; the connection
    is closed behind it. `who` names the listening side in messages, and its threads.
    """

    def __init__(
        self, who: str, host: str, port: int, converse: Callable[[socket.socket], None], clock: Clock
    ) -> None:
        self._who = who
        self._converse = converse
        self._clock = clock
        self._open: dict[socket.socket, threading.Thread] = {}
        # Oldest first.
        self._strangers: dict[socket.socket, None] = {}
        self._changing = threading.Lock()
        self._is_closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with store_errors(f"listen as a {who}", f"{host}:{port}"):
            self._listener = socket.create_server((host, port), family=family, backlog=256)
        bound = self._listener.getsockname()
        self.address: tuple[str, int] = (bound[0], bound[1])
        self._accepting = threading.Thread(target=self._accept, name=f"holdfast-{who}-accept", daemon=True)
        _listeners.add(self)

    def start(self) -> None:
        self._accepting.start()

    def admit(self, connection: socket.socket) -> None:
        """It has proved that it belongs here."""
        with self._changing:
            self._strangers.pop(connection, None)

    @property
    def admitted(self) -> int:
        with self._changing:
            return len(self._open) - len(self._strangers)

    def close(self) -> None:
        """Conversations under way break off; whoever was served has an error of its own."""
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
                    log.warning("holdfast: this %s takes no new connections: %s", self._who, error)
                return
            name = f"holdfast-{self._who}-{number}"
            thread = threading.Thread(target=self._hold, args=(connection,), name=name, daemon=True)
            with self._changing:
                if not self._is_closed:
                    self._open[connection] = thread
                    self._strangers[connection] = None
                    thread.start()
                    if len(self._strangers) > _MOST_STRANGERS:
                        oldest = next(iter(self._strangers))
                        del self._strangers[oldest]
                        with contextlib.suppress(OSError):
                            oldest.shutdown(socket.SHUT_RDWR)
                    continue
            connection.close()

    def _hold(self, connection: socket.socket) -> None:
        try:
            self._converse(connection)
        except (OSError, HoldfastError) as error:
            # Peers come and go, and strangers try; whoever cares has an error of its own.
            log.debug("holdfast: a connection to this %s ended: %s", self._who, error)
        except Exception:
            log.exception("holdfast: a connection to this %s failed unexpectedly", self._who)
        finally:
            connection.close()
            with self._changing:
                self._open.pop(connection, None)
                self._strangers.pop(connection, None)


# A forked DataLoader worker that outlives a killed trainer would keep the port, and its silence would pass
# for a node that hangs: the copies of our sockets in a child are closed at once.
_listeners: weakref.WeakSet[Listener] = weakref.WeakSet()


def _drop_in_child() -> None:
    for one in list(_listeners):
        for connection in (one._listener, *one._open):
            connection.close()


os.register_at_fork(after_in_child=_drop_in_child)
