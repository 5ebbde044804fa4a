"""Where other keepers knock. Who does not lead says so; who leads takes them in."""

from __future__ import annotations

import socket
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.keeper.voice import Voice
from holdfast.stores.listener import Listener
from holdfast.stores.wire import Channel
from holdfast.stores.wire_handshake import PURPOSE_KEEPER, admit

_HANDSHAKE_SECONDS = 5.0


class Host(Protocol):
    def converse(self, voice: Voice, hello: dict[str, Any]) -> None:
        """In a thread of its own, until the connection ends."""
        ...


class Post:
    """Listens from the moment it is made."""

    def __init__(self, address: str, token: bytes, clock: Clock, *, silence_seconds: float) -> None:
        self._token = token
        self._clock = clock
        self._silence = silence_seconds
        self._host: Host | None = None
        self._listener = Listener("keeper", address, 0, self._converse, clock)
        self.port = self._listener.address[1]
        self._listener.start()

    def hand_over(self, host: Host | None) -> None:
        """From now on `host` takes in who knocks; None: nobody does."""
        self._host = host

    def close(self) -> None:
        self._listener.close()

    def _converse(self, connection: socket.socket) -> None:
        # A guest that still waits for the hands of the dead may be silent for a while.
        patience = max(self._silence, _HANDSHAKE_SECONDS)
        channel = Channel(connection, self._clock, silence_seconds=patience)
        channel.limit(_HANDSHAKE_SECONDS)
        admit(channel, self._token, PURPOSE_KEEPER)
        self._listener.admit(connection)
        voice = Voice(channel)
        hello = voice.hear()
        channel.limit(None)
        host = self._host
        if host is None:
            voice.say({"answer": "not leading"})
        else:
            host.converse(voice, hello)
