"""Which ranks of other machines have fallen silent: each says every few seconds that it lives, and rank 0
listens.

Of processes beside it a rank hears from the kernel. A machine that is lost takes its kernel with it: then
nothing is heard at all. Silence is no proof of death (a call may hold the interpreter, a network be away),
so it takes long, and who is heard again counts again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from holdfast.errors import HoldfastError
from holdfast.ranks.store import RankStore

log = logging.getLogger("holdfast")
BEAT_SECONDS, SILENCE_SECONDS = 5.0, 60.0
CLOSE_SECONDS = 5.0
# The last word of a rank that has ended: nothing more comes of it.
_BYE = b"bye"


class Pulse:
    """`listens_to` are the ranks whose silence is told as `tell(rank, is_silent, is_ended)`; others only
    speak."""

    def __init__(
        self,
        store: RankStore,
        rank: int,
        listens_to: Sequence[int],
        tell: Callable[[int, bool, bool], None],
        *,
        beat: float = BEAT_SECONDS,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self._store, self._rank, self._tell = store, rank, tell
        self._beat, self._silence = beat, silence
        # By rank: its last word, and when it was another one than before, by this process's clock.
        self._heard = {other: (b"", time.monotonic()) for other in listens_to}
        self._silent: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        beats = 0
        try:
            while not self._ended.is_set():
                if self._heard:
                    self._listen()
                else:
                    beats += 1
                    self._store.set(_key(self._rank), b"%d" % beats)
                self._ended.wait(self._beat)
            if not self._heard:
                self._store.set(_key(self._rank), _BYE)
        except HoldfastError as error:
            # The store is gone: everybody learns that by itself.
            log.debug("holdfast: no pulse of the ranks any more: %s", error)

    def _listen(self) -> None:
        asked = time.monotonic()
        for other, word in self._words().items():
            if word != self._heard[other][0]:
                self._heard[other] = (word, asked)
        # Who listened late has no right to complain: a store that was slow is no silence of others.
        late = time.monotonic() - asked
        for other, (word, since) in self._heard.items():
            is_silent = word == _BYE or asked - since - late > self._silence
            if is_silent != (other in self._silent):
                (self._silent.add if is_silent else self._silent.discard)(other)
                self._tell(other, is_silent, word == _BYE)

    def _words(self) -> dict[int, bytes]:
        known = [
            other for other, (word, _) in self._heard.items() if word or self._store.check([_key(other)])
        ]
        words = self._store.get_many([_key(other) for other in known], self._beat) if known else []
        return dict(zip(known, words or (), strict=False))


def _key(rank: int) -> str:
    return f"pulse/{rank}"
