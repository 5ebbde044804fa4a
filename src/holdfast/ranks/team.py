"""Who trains together, and the two ways in which all of them exchange something."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from holdfast.errors import InternalError, StoreUnavailable
from holdfast.ranks.line import Line
from holdfast.ranks.pulse import BEAT_SECONDS, SILENCE_SECONDS, Pulse
from holdfast.ranks.store import RankStore
from holdfast.ranks.vigil import Vigil

log = logging.getLogger("holdfast")
# How long rank 0 stays for the others when all is done.
PART_SECONDS = 5.0
_DIED = b"\0holdfast: it has died"
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1


class Team:
    """The ranks of one Run. `nodes[r]` is the name of the machine that rank r runs on; `beside` are the
    process ids of the others on this one, `afar` the ranks of other machines.

    Every rank calls `share` and `gather` with the same keys equally often; one thread per rank does.
    """

    def __init__(
        self,
        store: RankStore,
        *,
        rank: int,
        world: int,
        nodes: Sequence[str],
        local_rank: int,
        beside: Mapping[int, int] | None = None,
        afar: Sequence[int] = (),
        beat: float = BEAT_SECONDS,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self.rank, self.world, self.local_rank = rank, world, local_rank
        self.nodes = tuple(nodes)
        self._store = store
        self._line = Line(store)
        self._calls: Counter[str] = Counter()
        listens_to = afar if self.leads else ()
        self.vigil = Vigil(store.clone() if beside or listens_to else store, beside or {}, listens_to)
        self._silence = silence
        self._pulse: Pulse | None = None
        if listens_to or (0 in afar and not self.leads):
            # Rank 0 is nobody's to watch: the store goes with its machine, and that is noticed anyway.
            self._pulse = Pulse(store.clone(), rank, listens_to, self._heard, beat=beat, silence=silence)

    @property
    def node(self) -> str:
        return self.nodes[self.rank]

    @property
    def leads(self) -> bool:
        """Rank 0 proposes, counts and commits."""
        return self.rank == 0

    def connect(self) -> RankStore:
        """A connection for one more thread. To be had early, while the store is known to be there."""
        return self._store.clone()

    def share(self, key: str, value: bytes | None, limit: float) -> bytes:
        """Rank 0's value, everywhere. Rank 0 does not wait for the others."""
        name = f"share/{key}/{self._turn('share', key)}"
        if self.leads:
            if value is None:
                raise InternalError(f"rank 0 shares nothing as {key!r}")
            given = value
            self._line.ask(lambda store: store.set(name, given), limit)
            return given
        self.vigil.owe("share", {0: {name: _DIED}})
        found = self._line.ask(lambda store: store.get(name, limit), limit)
        if found == _DIED:
            raise StoreUnavailable(f"rank 0 died before it shared {key!r}")
        if found is None:
            raise StoreUnavailable(
                f"rank 0 did not share {key!r} within {limit:g} s", hint="its log says what keeps it"
            )
        self._line.ask(lambda store: self._forget_when_read(store, name), limit)
        return found

    def gather(self, key: str, mine: bytes, limit: float) -> list[bytes]:
        """What every rank gave, by rank. Costs world² messages: for start and planning, never per step."""
        turn = self._turn("gather", key)
        names = [f"gather/{key}/{turn}/{rank}" for rank in range(self.world)]
        self._line.ask(lambda store: store.set(names[self.rank], mine), limit)
        self.vigil.owe("gather", {other: {names[other]: _DIED} for other in self.vigil.watched})
        found = self._line.ask(lambda store: store.get_many(names, limit), limit)
        if found is not None and _DIED in found:
            dead = rank_list([other for other, value in enumerate(found) if value == _DIED])
            raise StoreUnavailable(f"{dead} died before giving {key!r}")
        if found is None:
            missing = self._line.ask(lambda store: self._missing(store, names), limit)
            raise StoreUnavailable(
                f"{missing} did not give {key!r} within {limit:g} s", hint="their logs say what keeps them"
            )
        # Whoever gave something now has what was given before.
        self._line.ask(lambda store: store.delete(f"gather/{key}/{turn - 1}/{self.rank}"), limit)
        return found

    def part(self, limit: float = PART_SECONDS) -> None:
        """The last word of every rank, when nothing else of it uses the store any more.

        The store may live in rank 0's process, and a call that is under way when that ends makes torch print
        a stack trace which looks like a crash. So rank 0 stays until all others have said it, `limit` seconds
        at most: a rank that died never does. Never raises.
        """
        with contextlib.suppress(StoreUnavailable):
            if not self.leads:
                # It has no answer, so nothing is under way behind it.
                self._line.ask(lambda store: store.set(f"parted/{self.rank}", b""), limit)
                return
            self.vigil.owe("part", {other: {f"parted/{other}": b""} for other in self.vigil.watched})
            others = [f"parted/{rank}" for rank in range(1, self.world)]
            end, pause = time.monotonic() + limit, FIRST_PAUSE
            while not self._line.ask(lambda store: store.check(others), limit) and time.monotonic() < end:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _heard(self, rank: int, is_silent: bool, is_ended: bool) -> None:
        where = f"rank {rank} on {self.nodes[rank]}"
        if is_silent and not is_ended:
            log.warning(
                "holdfast: nothing was heard of %s for %g s: its process has died, or its machine or network"
                " is gone; it is not waited for", where, self._silence,
            )  # fmt: skip
        elif not is_ended:
            log.warning("holdfast: %s is heard again", where)
        self.vigil.heard(rank, is_silent)

    def close(self) -> None:
        if self._pulse is not None:
            self._pulse.close()
        self.vigil.close()
        self._line.close()

    def _turn(self, how: str, key: str) -> int:
        self._calls[f"{how}/{key}"] += 1
        return self._calls[f"{how}/{key}"]

    def _forget_when_read(self, store: RankStore, name: str) -> None:
        """The last reader tidies up: only then nobody can be looking for it any more."""
        if store.add(f"{name}/read", 1) == self.world - 1:
            store.delete(name)
            store.delete(f"{name}/read")

    def _missing(self, store: RankStore, names: Sequence[str]) -> str:
        return rank_list([rank for rank, name in enumerate(names) if not store.check([name])])


def rank_list(ranks: Sequence[int]) -> str:
    """rank 3; ranks 1, 2; ranks 0, 1, 2, 3 and 60 more."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return "ranks " + ", ".join(map(str, ranks[:4])) + more
