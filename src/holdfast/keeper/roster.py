"""Who is with the leader right now: what they say, one thing after the other, and who is gone.

Reader threads only put into the inbox; everything is decided by the one thread that takes from it.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.keeper.world import Card
from holdfast.stores.wire import Channel


@dataclass(frozen=True)
class Came:
    card: Card


@dataclass(frozen=True)
class Gone:
    card: Card
    why: str


@dataclass(frozen=True)
class Said:
    card: Card
    message: dict[str, Any]


News = Came | Gone | Said


class Roster:
    """Satisfies Host. `refuse` answers why a keeper may not come in, or None."""

    def __init__(
        self,
        clock: Clock,
        *,
        beat_seconds: float,
        silence_seconds: float,
        refuse: Callable[[dict[str, Any]], dict[str, Any] | None],
    ) -> None:
        self._clock = clock
        self._beat = beat_seconds
        self._silence = silence_seconds
        self._refuse = refuse
        self._inbox: queue.SimpleQueue[tuple[Channel, News]] = queue.SimpleQueue()
        self._channels: dict[int, Channel] = {}
        self._beat_at = 0.0
        self.members: dict[int, Card] = {}

    # ---- in the thread of a connection

    def converse(self, channel: Channel, hello: dict[str, Any]) -> None:
        refusal = self._refuse(hello)
        if refusal is not None:
            channel.send(refusal)
            return
        card = Card(int(hello["number"]), str(hello["address"]), int(hello["port"]), str(hello["host"]))
        self._inbox.put((channel, Came(card)))
        why = "it left"
        try:
            while True:
                channel.wait(self._silence)
                message = channel.receive()
                if message.get("say") == "bye":
                    return
                if message.get("say") != "beat" or "run" in message:
                    self._inbox.put((channel, Said(card, message)))
        except TimeoutError:
            why = f"no sign of life for {self._silence:g} s"
        except (OSError, HoldfastError) as error:
            why = f"its connection broke: {error}"
        finally:
            self._inbox.put((channel, Gone(card, why)))

    # ---- in the leader's thread

    def next(self, seconds: float) -> News | None:
        """What comes next, or None after `seconds`. Signs of life go out meanwhile."""
        end = self._clock.monotonic() + seconds
        while True:
            self._send_beats()
            now = self._clock.monotonic()
            try:
                channel, news = self._inbox.get(timeout=max(min(end, self._beat_at) - now, 0.0))
            except queue.Empty:
                if self._clock.monotonic() >= end:
                    return None
                continue
            if self._take(channel, news):
                return news

    def _take(self, channel: Channel, news: News) -> bool:
        number = news.card.number
        if isinstance(news, Came):
            self._channels[number] = channel
            self.members[number] = news.card
            self.tell(number, {"answer": "welcome"})
            return True
        if self._channels.get(number) is not channel:
            # The end of a connection that a newer one has replaced, or words that came through it.
            return False
        if isinstance(news, Gone):
            del self._channels[number], self.members[number]
        return True

    def tell(self, number: int, message: dict[str, Any]) -> None:
        """Best effort: whoever cannot be told is found gone by the thread that reads from it."""
        channel = self._channels.get(number)
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.send(message)

    def tell_all(self, message: dict[str, Any]) -> None:
        for number in list(self._channels):
            self.tell(number, message)

    def _send_beats(self) -> None:
        now = self._clock.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + self._beat
            self.tell_all({"say": "beat"})
