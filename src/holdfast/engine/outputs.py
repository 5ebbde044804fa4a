"""Files that others write, kept like checkpoints: with digests, all or nothing, on one rank or many.

Each name has a store of its own below the run's folder. Files are written into a scratch folder and copied
when they are complete: a file that somebody still holds open can then never change what is committed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.rank_claims import RankClaims
from holdfast.checkpoints.read import newest_loadable
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.write import CheckpointDraft, Committed
from holdfast.checkpoints.write_together import decline
from holdfast.clock import Clock
from holdfast.engine.background import Worker
from holdfast.engine.handle import SaveHandle
from holdfast.engine.load_together import load_together
from holdfast.engine.outputs_files import ROLE, OutputFile
from holdfast.engine.outputs_restore import Restoring
from holdfast.engine.outputs_scratch import Scratch
from holdfast.engine.tier_words import say_fallback
from holdfast.engine.tiers_of_run import TiersOfRun
from holdfast.engine.together import Together, claim_known
from holdfast.engine.writers import Alone, Everybody, Writer
from holdfast.errors import HoldfastError, InternalError, RestoreError, SaveError, SetupError, StoreError
from holdfast.events import CheckpointRejected, Emit, OutputCommitted, Pruned, Warned
from holdfast.format.manifest import utc_text
from holdfast.format.names import parse_checkpoint_name
from holdfast.stores.base import Store
from holdfast.stores.locations import open_store
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.named_tier import NamedTier
from holdfast.tiers.tier_list import recall_tiers
from holdfast.tiers.words import HOME, Tier

log = logging.getLogger("holdfast")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class Outputs:
    """The outputs of an open run. Used by the training thread; `worker` writes."""

    def __init__(
        self, home: CheckpointStore, clock: Clock, worker: Worker, emit: Emit, *, limit: float,
        together: Together | None = None,
    ) -> None:  # fmt: skip
        self.limit = limit
        self._run = home.where
        self._folder = os.path.join(home.where, FOLDER)
        self._clock = clock
        self._worker = worker
        self._emit = emit
        self._together = together
        team = None if together is None else together.team
        self.rank = None if team is None else team.rank
        self._world = 1 if team is None else team.world
        self.scratch = Scratch(
            os.path.join(self._folder, ".scratch"), uuid=home.uuid, epoch=home.writer_epoch,
            rank=self.rank or 0, sweeps=team is None or team.local_rank == 0,
        )  # fmt: skip
        self._claimed: dict[str, CheckpointStore] = {}
        self._tiers: dict[str, TiersOfRun] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._begun: dict[tuple[str, int], int] = {}

    # ---- writing

    def begin(self, name: str, step: int) -> str:
        """What all ranks call this output. Counted per step: a rank that was left out of one still finds the
        others at the next."""
        turn = self._begun[name, step] = self._begun.get((name, step), -1) + 1
        return f"output/{name}/{step}.{turn}"

    def claim(self, name: str, keep: Retention) -> None:
        """Become the writer of this name's store, together with the other ranks."""
        together, folder = self._together, os.path.join(self._folder, name)
        outer = outer_tiers(self._run, name)
        if name not in self._claimed:
            team = None if together is None else together.team
            self._claimed[name] = claim_known(folder, outer, self._clock, team, self.limit)
            self._ledgers.setdefault(name, Ledger())
        leads = together is None or together.leads
        # Apart from the claim: a tier that cannot be reached now is asked again by the next output.
        if outer and leads and name not in self._tiers:
            tiers = TiersOfRun(self._claimed[name], (Tier(HOME), *outer), keep, self._clock)
            tiers.start_draining(self._emit)
            self._tiers[name] = tiers

    def decline(self, save: str, why: str) -> None:
        """This rank's part will not come. The others need not wait for it."""
        together = self._together
        if together is not None:
            self._worker.submit(lambda: decline(together.team, together.ballot, save, why))

    def commit(
        self, name: str, save: str, step: int, files: Sequence[OutputFile], folder: Path, keep: Retention
    ) -> SaveHandle:
        """Copy the files and commit, on the worker, which then removes `folder`."""
        handle = SaveHandle(step, f"output {name}", self.limit)
        self._worker.submit(lambda: self._write(handle, name, save, files, folder, keep))
        return handle

    def _write(
        self, handle: SaveHandle, name: str, save: str, files: Sequence[OutputFile], folder: Path,
        keep: Retention,
    ) -> None:  # fmt: skip
        store, begun = self._claimed[name], self._clock.monotonic()
        draft = CheckpointDraft(
            writer_epoch=store.writer_epoch,
            step=handle.step,
            created=utc_text(self._clock.wall()),
            reason=handle.reason,
            progress={"step": handle.step, "output": name},
            values={"files": {file.name: file.words for file in files}},
            roles=dict.fromkeys((file.name for file in files), ROLE),
        )
        try:
            try:
                committed = self._writer(store).write(save, draft, files, {}, RankClaims(), lambda: None)
            finally:
                for file in files:
                    file.close()
                self.scratch.remove(folder)
        except HoldfastError as error:
            return self._not_committed(handle, name, error)
        except Exception as error:  # noqa: BLE001  carried to the caller through the handle
            return self._not_committed(handle, name, InternalError(f"the output {name} failed: {error!r}"))
        self._emit(
            OutputCommitted(
                time=self._clock.wall(), output=name, step=handle.step, name=str(committed.name),
                seconds=self._clock.monotonic() - begun, bytes=sum(file.size for file in files),
            )
        )  # fmt: skip
        handle.committed(str(committed.name))
        self._after_commit(name, store, committed, keep)

    def _writer(self, store: CheckpointStore) -> Writer:
        together = self._together
        return Alone(store) if together is None else Everybody(store, together.team, together.ballot)

    def _after_commit(self, name: str, store: CheckpointStore, committed: Committed, keep: Retention) -> None:
        """The successor is durable, so something older may go. An old generation too many hurts nobody."""
        if self._together is not None and not self._together.leads:
            return

        def tell(gone: str, why: str) -> None:
            self._emit(Pruned(time=self._clock.wall(), name=f"{FOLDER}/{name}/{gone}", why=why))

        ledger = self._ledgers[name]
        ledger.committed.add(str(committed.name))
        tiers = self._tiers.get(name)
        if tiers is not None:
            tiers.committed(str(committed.name), committed.manifest)
        try:
            prune(store, keep, ledger, retired=tell, spare=tiers.needed if tiers else ())
        except (StoreError, SaveError) as error:
            log.warning("holdfast: pruning the output %s failed, older ones stay: %s", name, error)

    def _not_committed(self, handle: SaveHandle, name: str, error: HoldfastError) -> None:
        self.failed(name, handle.step, error)
        handle.failed(error)

    def failed(self, name: str, step: int, error: HoldfastError) -> None:
        text = f"the output {name} of step {step} was not committed: {error.message}"
        self._emit(Warned(time=self._clock.wall(), message=text))

    # ---- reading

    def restored(self, name: str, *, step: int | None, rank: int | None) -> Path | None:
        """Where copies of the newest whole generation lie, the same on all ranks; None if there is none."""
        check_name(name)
        store = copies_of(self._run, name, step)
        restoring = Restoring(store, self.scratch, self.rank or 0, self._world, rank)

        def reject(found: Found, why: str) -> None:
            log.warning("holdfast: the output %s of step %d is passed over: %s", name, found.step, why)
            rejected = f"{FOLDER}/{name}/{found.name}"
            self._emit(CheckpointRejected(time=self._clock.wall(), name=rejected, why=why))

        if self._together is None:
            loaded = newest_loadable(store, restoring.load, reject=reject)
        else:
            loaded = load_together(store, self._together.team, self.limit, restoring.load, reject)
        if loaded is None:
            return None
        found, folder = loaded
        if restoring.failure is not None:
            self.scratch.remove(folder)
            raise RestoreError(
                f"cannot copy the output {name} to {folder.parent}: {restoring.failure}",
                hint="free space there",
            ) from restoring.failure
        self._ledgers.setdefault(name, Ledger()).resumed_from = str(found.name)
        return folder

    def close(self) -> None:
        """Behind the last job of the worker. Restored folders go."""
        self.scratch.close()
        for tiers in self._tiers.values():
            tiers.close(self.limit)
        for store in self._claimed.values():
            store.release()
        self._tiers.clear()
        self._claimed.clear()


def check_name(name: str) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise SetupError(
            f"{name!r} cannot name an output",
            hint="use up to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
        )


# ---- The lasting tiers of a run, as places for copies of its outputs: each name has a folder of its own
# there.
#
# An output is committed in the run's own folder, on storage that all ranks share, before the with block
# ends. So node-local tiers have nothing to add to it, and copies go straight outward.

FOLDER = "outputs"


def outer_tiers(run: str, output: str) -> tuple[Tier, ...]:
    """Where copies of this output go: one place in each lasting tier that the run has now."""
    return tuple(_inside(tier, output) for tier in recall_tiers(run).now if _lasts(tier))


def copies_of(run: str, output: str, step: int | None) -> Ladder:
    """Every place that has or had copies, nearest first, to read."""
    listed = recall_tiers(run)
    places: dict[str, Store] = {HOME: CheckpointStore(os.path.join(run, FOLDER, output))}
    for tier in (*listed.now, *listed.former):
        if _lasts(tier):
            inside = _inside(tier, output)
            places[inside.location] = open_store(inside.location if inside.kind == "objects" else inside.path)
    tiers = [NamedTier(name, store) for name, store in places.items()]
    return _OfStep(tiers, step)


class _OfStep(Ladder):
    """The generations of one step, or all of them."""

    def __init__(self, tiers: Sequence[NamedTier], step: int | None) -> None:
        super().__init__(tiers, tell=say_fallback)
        self._step = step

    def names(self) -> list[str]:
        names = ((text, parse_checkpoint_name(text)) for text in super().names())
        return [text for text, name in names if self._step is None or (name and name.step == self._step)]


def _lasts(tier: Tier) -> bool:
    return tier.kind in ("directory", "objects") and not tier.is_node_local


def _inside(tier: Tier, output: str) -> Tier:
    return replace(tier, location=f"{tier.location.rstrip('/')}/{FOLDER}/{output}")
