"""What torn snapshots teach: a tensor that changed behind the boundary once will do so again.

An embedding with max_norm is clipped in every forward pass: copied late, it would tear every save. It is
copied at the boundary from then on. Weights that were swapped as a whole, for a validation, must do so twice.
"""

from __future__ import annotations

import weakref

import torch

from holdfast.staging.torch_stager import Snapshot

_MOST = 0.5


class Tears:
    """Used by the training thread only."""

    def __init__(self) -> None:
        self._watched: list[Snapshot] = []
        self._torn: dict[int, weakref.ref[torch.Tensor]] = {}
        self._mass_tears = 0

    def watch(self, snapshot: Snapshot) -> None:
        self._watched.append(snapshot)

    def learn(self) -> bool:
        """Look at what has ended. Whether something tore that had not torn before."""
        ended = [s for s in self._watched if s.wait(0)]
        self._watched = [s for s in self._watched if s not in ended]
        before = len(self._torn)
        for snapshot in ended:
            self._mass_tears += snapshot.torn_share > _MOST
            if snapshot.torn_share <= _MOST or self._mass_tears > 1:
                self._torn.update({id(t): weakref.ref(t) for t in snapshot.torn})
            snapshot.torn = []
        return len(self._torn) > before

    def torn_ids(self) -> set[int]:
        """Those that still exist: the id of one that is gone may belong to another by now."""
        return {ident for ident, reference in self._torn.items() if reference() is not None}
