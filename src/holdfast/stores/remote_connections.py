"""A few connections to one node, shared by threads. A node that did not answer is not asked again at once."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.stores.patience import Patience
from holdfast.stores.wire import Channel
from holdfast.stores.wire_handshake import PURPOSE_STORE, Busy, introduce

# For so long after a connect that got no answer, callers are told at once instead of waiting each in turn.
_DOWN_SECONDS = 5.0
# About a minute in all.
_WHILE_BUSY = Patience(attempts=36, first_pause=0.02, longest_pause=2.0)


class Connections:
    """At most `most` at a time; a caller waits for a free one, but not for ever."""

    def __init__(
        self,
        address: tuple[str, int],
        token: bytes,
        clock: Clock,
        *,
        connect_seconds: float,
        silence_seconds: float,
        most: int,
        while_busy: Patience = _WHILE_BUSY,
    ) -> None:
        self.where = f"{address[0]}:{address[1]}"
        self._address = address
        self._token = token
        self._clock = clock
        self._connect_seconds = connect_seconds
        self._silence = silence_seconds
        self._most = most
        self._while_busy = while_busy
        self._down_until = 0.0
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._idle: list[Channel] = []
        self._places = threading.BoundedSemaphore(self._most)
        self._is_closed = False

    @contextlib.contextmanager
    def one(self, *, fresh: bool, wait_seconds: float) -> Iterator[tuple[Channel, bool]]:
        """A connection, and whether it was used before. Only one that ended in good order is kept."""
        if self._pid != os.getpid():
            # A forked child shares its parent's sockets: two voices on one wire. It gets its own.
            self._reset()
        places = self._places
        if not places.acquire(timeout=wait_seconds):
            raise StoreUnavailable(f"no connection to {self.where} became free in {wait_seconds:.0f} s")
        try:
            idle = None if fresh else self._take_idle()
            channel = idle if idle is not None else self._connect()
            try:
                yield channel, idle is not None
            except BaseException:
                channel.close()
                raise
            if channel.to_send or channel.to_receive or self._is_closed or places is not self._places:
                channel.close()
            else:
                self._idle.append(channel)
        finally:
            places.release()

    def _take_idle(self) -> Channel | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connect(self) -> Channel:
        """Busy is not the end: others finish what they ask for, and then there is room."""
        busy: Busy | None = None
        for _ in self._while_busy.tries():
            try:
                return self._try_to_connect()
            except Busy as error:
                busy = error
        raise busy or StoreUnavailable(f"{self.where} was not asked")

    def _try_to_connect(self) -> Channel:
        if self._clock.monotonic() < self._down_until:
            raise StoreUnavailable(f"{self.where} did not answer a moment ago", hint="the node may be down")
        try:
            connection = socket.create_connection(self._address, timeout=self._connect_seconds)
        except OSError as error:
            if isinstance(error, TimeoutError):
                self._down_until = self._clock.monotonic() + _DOWN_SECONDS
            raise StoreUnavailable(
                f"cannot connect to {self.where}: {error.strerror or error}", hint="the node may be down"
            ) from error
        channel = Channel(connection, self._clock, silence_seconds=self._silence)
        try:
            channel.limit(self._connect_seconds)
            introduce(channel, self._token, PURPOSE_STORE)
        except HoldfastError as error:
            channel.close()
            raise type(error)(f"{self.where}: {error.message}", hint=error.hint) from error
        except BaseException as error:
            channel.close()
            if not isinstance(error, OSError):
                raise
            if isinstance(error, TimeoutError):
                self._down_until = self._clock.monotonic() + _DOWN_SECONDS
            raise StoreUnavailable(f"{self.where} does not greet: {error}") from error
        return channel

    def close(self) -> None:
        self._is_closed = True
        while (channel := self._take_idle()) is not None:
            channel.close()
