"""Hands a loader's batches to training and knows, at every moment, exactly what training has consumed.

The position moves when a batch is handed out, never when a worker loads ahead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from holdfast.data.audit_log import AuditRecord
from holdfast.data.torch_map_style import MapStyle
from holdfast.errors import IncompatibleState, SetupError

_VERSION = 1


class Feed:
    def __init__(
        self,
        loader: Any,
        *,
        name: str,
        seed: int,
        rank: int = 0,
        world: int = 1,
        seed_samples: bool = True,
        audit: Callable[[AuditRecord], None] | None = None,
    ) -> None:
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            raise SetupError(f"cannot take a position in {type(loader).__name__}")
        self.name = name
        self._seed = seed
        self._audit = audit
        self._source = MapStyle(loader, seed_samples=seed_samples, rank=rank, world=world)
        self._epoch = 0
        self._epoch_seed = seed
        self._passes = 0
        self._consumed = 0
        self._served = 0
        self._finished = False
        self._begun = False
        self._restored = False
        self._memory: dict[str, Any] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._source)

    def batches(self, epoch: int) -> Iterator[Any]:
        self._turn += 1
        if self._begin(epoch):
            return self._serve(self._turn)
        return iter(())

    def _begin(self, epoch: int) -> bool:
        restored, self._restored = self._restored, False
        if restored and epoch == self._epoch:
            self._source.put_back(self._memory)
            if self._finished:
                self._source.advance(self._epoch, self._epoch_seed, None)
                return False
            return True
        if restored:
            self._source.put_back(self._memory)
            self._source.advance(self._epoch, self._epoch_seed, None if self._finished else self._consumed)
        elif self._begun and epoch == self._epoch and not self._finished:
            self._source.put_back(self._memory)
            return True
        self._passes = self._passes + 1 if self._begun and epoch == self._epoch else 0
        self._epoch, self._epoch_seed, self._consumed = epoch, self._seed, 0
        self._finished, self._begun = False, True
        self._memory = self._source.remember()
        return True

    def _serve(self, turn: int) -> Iterator[Any]:
        for asked, batch in self._source.open(self._epoch, self._epoch_seed, self._consumed):
            if turn != self._turn:
                raise SetupError(f"two iterations over the loader {self.name!r} are interleaved")
            self._consumed = asked.consumed
            if self._audit is not None:
                self._audit(
                    AuditRecord(
                        self.name,
                        self._served,
                        self._epoch,
                        self._passes,
                        asked.consumed,
                        asked.items,
                        asked.padding,
                        False,
                        self._source.size,
                        self._source.once_each,
                    )
                )
            self._served += 1
            yield batch
        if turn == self._turn:
            self._finished = True

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "kind": self._source.kind,
            "size": self._source.size,
            "seed": self._epoch_seed,
            "begun": self._begun,
            "epoch": self._epoch,
            "passes": self._passes,
            "consumed": self._consumed,
            "served": self._served,
            "finished": self._finished,
            "sampler": self._memory,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["kind"] != self._source.kind or state["size"] != self._source.size:
            raise IncompatibleState(f"the loader {self.name!r} differs from the one that was saved")
        self._epoch_seed, self._begun = state["seed"], state["begun"]
        self._epoch, self._passes = state["epoch"], state["passes"]
        self._consumed, self._served = state["consumed"], state["served"]
        self._finished, self._memory = state["finished"], state["sampler"]
        self._restored = self._begun
        if self._epoch_seed != self._seed:
            warnings.warn("seed changed", stacklevel=2)
