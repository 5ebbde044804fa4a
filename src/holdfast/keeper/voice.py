"""How keepers speak: JSON of any length over one connection, and signs of life beside it.

Signs of life come from a thread of their own. A keeper whose other threads wait for a slow file system is not
dead, and must not look it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.errors import StoreError
from holdfast.stores.wire import Channel

MAX_MESSAGE_BYTES = 64 << 20
BEAT = {"say": "beat"}


class Voice:
    """One end of a connection. Any thread may speak, one listens."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._speaking = threading.Lock()

    def say(self, message: dict[str, Any]) -> None:
        data = json.dumps(message, separators=(",", ":")).encode()
        with self._speaking:
            self.channel.send({}, body=len(data))
            self.channel.send_body(data)

    def beat(self) -> None:
        # Somebody who is in the middle of a word is alive, too.
        if self._speaking.acquire(blocking=False):
            try:
                self.channel.send(BEAT)
            finally:
                self._speaking.release()

    def hear(self) -> dict[str, Any]:
        header = self.channel.receive()
        if not header["body"]:
            return header
        try:
            said = json.loads(self.channel.receive_bytes(header["body"], MAX_MESSAGE_BYTES))
        except (ValueError, RecursionError) as error:
            raise StoreError("a keeper sent something that is not JSON") from error
        if not isinstance(said, dict):
            raise StoreError("a keeper sent something that is not a message")
        return said


class Beating:
    """Signs of life to everybody that `voices` names, until stopped."""

    def __init__(self, voices: Callable[[], Iterable[Voice]], seconds: float) -> None:
        self._voices = voices
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="holdfast-beats", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._seconds):
            for voice in self._voices():
                # Whoever cannot be reached is found gone by whoever listens to it.
                with contextlib.suppress(OSError):
                    voice.beat()
