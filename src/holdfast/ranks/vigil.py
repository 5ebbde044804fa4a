"""Which ranks have died, told to whoever waits for them.

A process that was killed says nothing any more, and others would wait for its word until their limit. The
kernel knows at once: every rank holds a descriptor of each process of its team on this machine. When one
dies, what it owes the others (a vote, a place to write to) is written in its name, unless it had said it.
Rank 0 does the same for ranks of other machines from which nothing is heard any more (`ranks/pulse.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Mapping, Sequence

from holdfast.errors import HoldfastError
from holdfast.ranks.store import RankStore

log = logging.getLogger("holdfast")
CLOSE_SECONDS = 5.0


class Vigil:
    """`processes` are the others of this machine: rank and process id. Where the system has no descriptors of
    processes, nobody is ever known to have died."""

    def __init__(self, store: RankStore, processes: Mapping[int, int], afar: Sequence[int] = ()) -> None:
        """`afar` are ranks whose silence somebody tells of with `heard`."""
        self._store = store
        self._afar = tuple(afar)
        self._silent: set[int] = set()
        self._lock = threading.Lock()
        self._gone: set[int] = set()
        # By topic and rank: the keys it owes, and what is written there for it.
        self._owed: dict[str, dict[int, dict[str, bytes]]] = {}
        self._ranks: dict[int, int] = {}
        for rank, process in processes.items():
            # ProcessLookupError: it died while all were meeting; nobody waits for it without a limit.
            with contextlib.suppress(OSError, AttributeError):
                self._ranks[os.pidfd_open(process)] = rank
        self._thread: threading.Thread | None = None
        self._wake: tuple[int, int] | None = None
        if self._ranks:
            self._wake = os.pipe()
            self._thread = threading.Thread(target=self._watch, name="holdfast-vigil", daemon=True)
            self._thread.start()

    @property
    def gone(self) -> frozenset[int]:
        """Ranks that are known to have died, or are silent. Most know only those of their machine."""
        with self._lock:
            return frozenset(self._gone | self._silent)

    @property
    def watched(self) -> Sequence[int]:
        return sorted({*self._ranks.values(), *self._afar})

    def heard(self, rank: int, is_silent: bool) -> None:
        """Nothing is heard of this rank any more, or something again."""
        with self._lock:
            (self._silent.add if is_silent else self._silent.discard)(rank)
            owed = [keys[rank] for keys in self._owed.values() if rank in keys] if is_silent else []
        for keys in owed:
            self._pay(keys)

    def owe(self, topic: str, debts: Mapping[int, Mapping[str, bytes]]) -> None:
        """From now on these ranks owe these keys, and nothing else on this topic."""
        with self._lock:
            self._owed[topic] = {rank: dict(keys) for rank, keys in debts.items()}
            lost = self._gone | self._silent
            late = {rank: self._owed[topic][rank] for rank in debts if rank in lost}
        for keys in late.values():
            self._pay(keys)

    def close(self) -> None:
        if self._thread is None or self._wake is None:
            return
        os.write(self._wake[1], b".")
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            for descriptor in (*self._ranks, *self._wake):
                os.close(descriptor)
        self._thread = None

    def _watch(self) -> None:
        assert self._wake is not None
        poll = select.poll()
        for descriptor in (*self._ranks, self._wake[0]):
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake[0]:
                    return
                poll.unregister(descriptor)
                self._died(self._ranks[descriptor])

    def _died(self, rank: int) -> None:
        with self._lock:
            self._gone.add(rank)
            owed = [keys[rank] for keys in self._owed.values() if rank in keys]
        self._pay({f"gone/{rank}": b"", "gone/any": b""})
        for keys in owed:
            self._pay(keys)

    def _pay(self, keys: Mapping[str, bytes]) -> None:
        try:
            for key, value in keys.items():
                self._store.set_first(key, value)
        except HoldfastError as error:
            # The store is gone as well: then nobody hears anything, and everybody learns that by itself.
            log.debug("holdfast: the death of a rank cannot be told: %s", error)
