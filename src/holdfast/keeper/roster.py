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
from holdfast.errors import HoldfastError, StoreError
from holdfast.keeper.voice import Beating, Voice
from holdfast.keeper.world import Card


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

    @property
    def word(self) -> str:
        return str(self.message.get("say"))


News = Came | Gone | Said


class Roster:
    """Satisfies Host. `refuse` answers what to tell a keeper that may not come in, or None."""

    def __init__(
        self,
        clock: Clock,
        *,
        beat_seconds: float,
        silence_seconds: float,
        refuse: Callable[[dict[str, Any]], dict[str, Any] | None],
    ) -> None:
        self._clock = clock
        self._silence = silence_seconds
        self._refuse = refuse
        self._inbox: queue.SimpleQueue[tuple[Voice, News]] = queue.SimpleQueue()
        self._voices: dict[int, Voice] = {}
        self.members: dict[int, Card] = {}
        self._beating = Beating(lambda: list(self._voices.values()), beat_seconds)

    def close(self) -> None:
        self._beating.stop()

    # ---- in the thread of a connection

    def converse(self, voice: Voice, hello: dict[str, Any]) -> None:
        refusal = self._refuse(hello)
        if refusal is not None:
            voice.say(refusal)
            return
        card = _card(hello)
        self._inbox.put((voice, Came(card)))
        why = "it left"
        try:
            while True:
                voice.channel.wait(self._silence)
                message = voice.hear()
                if message.get("say") == "bye":
                    return
                if message.get("say") != "beat":
                    self._inbox.put((voice, Said(card, message)))
        except TimeoutError:
            why = f"no sign of life for {self._silence:g} s"
        except (OSError, HoldfastError) as error:
            why = f"its connection broke: {error}"
        finally:
            self._inbox.put((voice, Gone(card, why)))

    # ---- in the leader's thread

    def next(self, seconds: float) -> News | None:
        """What comes next, or None after `seconds`."""
        end = self._clock.monotonic() + seconds
        while True:
            try:
                voice, news = self._inbox.get(timeout=max(end - self._clock.monotonic(), 0.0))
            except queue.Empty:
                return None
            if self._take(voice, news):
                return news

    def _take(self, voice: Voice, news: News) -> bool:
        number = news.card.number
        if isinstance(news, Came):
            self._voices[number] = voice
            self.members[number] = news.card
            self.tell(number, {"answer": "welcome"})
            return True
        if self._voices.get(number) is not voice:
            # The end of a connection that a newer one has replaced, or words that came through it.
            return False
        if isinstance(news, Gone):
            del self._voices[number], self.members[number]
        return True

    def tell(self, number: int, message: dict[str, Any]) -> None:
        """Best effort: whoever cannot be told is found gone by the thread that listens to it."""
        voice = self._voices.get(number)
        if voice is not None:
            with contextlib.suppress(OSError):
                voice.say(message)

    def tell_all(self, message: dict[str, Any]) -> None:
        for number in list(self._voices):
            self.tell(number, message)


def _card(hello: dict[str, Any]) -> Card:
    try:
        return Card(int(hello["number"]), str(hello["address"]), int(hello["port"]), str(hello["host"]))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"a keeper introduced itself badly: {error!r}") from error
