"""The power goes at every point of a save, a prune and a second save, on a file system that promises least.

The real reader looks at every tree that may be left. Then each fsync is taken away in turn: the same
checks must notice, or the check (or the fsync) is worth nothing.
"""

import os
from collections.abc import Callable

import pytest
from forgetful_io import ForgetfulIO

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.verify import verify
from holdfast.errors import NoValidCheckpoint, StoreError
from holdfast.format.names import DEAD
from holdfast.format.sealed import check_seal
from holdfast.stores.io import StoreIO
from holdfast.stores.store import CheckpointStore
from holdfast.stores.stored_file import read_small
from holdfast.testing.crash_states import CrashState, crash_states
from holdfast.testing.crashing_io import CrashingIO, SimulatedCrash
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.recording_io import Recording, RecordingIO
from holdfast.testing.store_contract import newest_valid, save

IDENTITY = "00000000-0000-0000-0000-000000000000"
TORTURE = bool(os.environ.get("HOLDFAST_TORTURE"))


class SpokenStore(CheckpointStore):
    """Says so before it retires: from that moment the victim may or may not be there."""

    def __init__(self, io: StoreIO, recording: Recording) -> None:
        super().__init__("/run", io=io, threads=1, uuid=IDENTITY)
        self._recording = recording

    def retire(self, name: str) -> None:
        self._recording.mark("retiring", name)
        super().retire(name)


def run(recorder: RecordingIO, saves: int = 4, *, through: StoreIO | None = None) -> None:
    """Claim, then save and prune, telling the recording what the outside world has been promised."""
    say = recorder.recording.mark
    store = SpokenStore(through or recorder, recorder.recording)
    epoch = store.claim()
    say("claimed", str(epoch))
    ledger = Ledger()
    start = max((one.step for one in committed(store)), default=0)
    for step in range(start + 1, start + saves + 1):
        done = save(store, step, writer_epoch=epoch, nonce=f"{step:08x}")
        say("saved", str(done.name))
        ledger.committed.add(str(done.name))
        prune(store, Retention(latest=2), ledger)


def broken_promises(state: CrashState) -> list[str]:
    """What the tree of this crash state fails to keep of what had been promised before the crash."""
    promised = [mark.value for mark in state.promises if mark.label == "saved"]
    retiring = {mark.value for mark in state.promises if mark.label == "retiring"}
    store = CheckpointStore("/run", io=MemoryIO(state.tree), threads=1)
    broken = []
    try:
        found = {str(one.name): one for one in committed(store)}
        loaded = newest_valid(store)
    except NoValidCheckpoint as error:
        return [f"nothing loads: {error.message}"]
    newest = str(loaded.found.name) if loaded else ""
    for name in promised:
        if name not in retiring:
            if name not in found or not verify(store, found[name]).is_whole:
                broken.append(f"{name} was acknowledged and is lost")
            elif newest < name:
                broken.append(f"{name} was acknowledged but {newest} would be restored")
            else:
                broken += _second_copy_missing(state, name)
    for name, one in found.items():
        if one.manifest is not None and not verify(store, one).is_whole:
            broken.append(f"{name} has a valid manifest over bad data")
    if loaded is not None:
        image = image_of(loaded.found.step)
        if loaded.files[image.name] != image.view(0, image.size):
            broken.append(f"{newest} loads other bytes than were saved")
    return broken + _claim_lost(state)


def _second_copy_missing(state: CrashState, name: str) -> list[str]:
    io = MemoryIO(state.tree)
    try:
        place = io.open_directory(io.open_directory(io.open_root("", create=False), "ckpt"), name)
        check_seal(read_small(io, place, "MANIFEST.2", 1 << 20))
    except Exception as error:  # noqa: BLE001  any reason at all is a broken promise
        return [f"{name} has no second manifest: {error}"]
    return []


def _claim_lost(state: CrashState) -> list[str]:
    """Once claimed, an epoch never comes back, its owner is on record and the store keeps its identity."""
    claims = [int(mark.value) for mark in state.promises if mark.label == "claimed"]
    if not claims:
        return []
    store = CheckpointStore("/run", io=MemoryIO(state.tree), threads=1)
    try:
        if store.uuid != IDENTITY:
            return ["the store forgot who it is"]
    except StoreError as error:
        return [f"identity lost: {error.message}"]
    io = MemoryIO(state.tree)
    root = io.open_root("", create=False)
    try:
        check_seal(read_small(io, io.open_directory(root, "writers"), f"{claims[-1]:08d}.json", 1 << 16))
    except Exception as error:  # noqa: BLE001  any reason at all is a broken promise
        return [f"claim {claims[-1]} lost: {error}"]
    return []


def violations(io: RecordingIO, *, stop_at_first: bool) -> tuple[int, int, list[str]]:
    """States seen, distinct (tree, promises) pairs among them, and what was broken."""
    seen: dict[tuple[object, object], list[str]] = {}
    count, broken = 0, []
    for state in crash_states(io.recording):
        count += 1
        key = (state.tree.fingerprint(), state.promises)
        if key not in seen:
            seen[key] = broken_promises(state)
            broken += seen[key]
            if broken and stop_at_first:
                break
    return count, len(seen), broken


def test_no_crash_breaks_a_promise() -> None:
    io = ForgetfulIO(lambda site, nth: False)
    run(io)
    count, distinct, broken = violations(io, stop_at_first=False)
    assert broken == []
    # The count is part of the claim: a recorder that records nothing would pass everything else.
    assert count > 1_500, (count, distinct)
    assert distinct > 150


SHARDS = 16 if TORTURE else 1


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_power_cut_after_a_process_death_breaks_a_promise(
    shard: int, counted: Callable[[str, int, str, int], None]
) -> None:
    """A process dies at any call; its heir goes on in what it left; then the power fails at any point."""
    untouched = CrashingIO(MemoryIO(), 10**9)
    run(RecordingIO(untouched), saves=3)
    states = 0
    for survived in range(shard, untouched.calls, SHARDS if TORTURE else 29):
        memory = MemoryIO()
        recorder = RecordingIO(memory)
        with pytest.raises(SimulatedCrash):
            run(recorder, saves=3, through=CrashingIO(recorder, survived))
        memory.process_died()
        run(recorder, saves=3)
        count, _, broken = violations(recorder, stop_at_first=False)
        assert broken == [], f"the first process died at call {survived + 1}"
        states += count
    assert states > 10_000
    counted("crash states: a process dies at any call, then the power fails", states, "broken promises", 0)


class DiesWithTheTombstone(CrashingIO):
    """Dies as soon as the first checkpoint is uncommitted, before anything makes that durable."""

    def rename(self, directory: int, old: str, new: str) -> None:
        super().rename(directory, old, new)
        if new == DEAD:
            self._survived = self.calls


def test_who_clears_up_after_a_dead_pruner_makes_its_tombstone_durable_first() -> None:
    memory = MemoryIO()
    recorder = RecordingIO(memory)
    with pytest.raises(SimulatedCrash):
        run(recorder, saves=3, through=DiesWithTheTombstone(recorder, 10**9))
    memory.process_died()
    run(recorder, saves=1)
    assert violations(recorder, stop_at_first=False)[2] == []


PLACE = "ckpt/<name>"
# Every place in the protocol that syncs, with which of its syncs to skip (None: all of them).
ABLATIONS = {
    "the store's own directory when claiming": ("/.", None),
    "the identity": ("STORE.json", None),
    "the claim": ("writers/00000001.json", None),
    "the directory of claims": ("writers/.", None),
    "the directory of checkpoints": ("ckpt/.", None),
    "the data": (f"{PLACE}/r00000-000.safetensors", None),
    "the names of the data, before the manifest": (f"{PLACE}/.", 1),
    "the second manifest": (f"{PLACE}/MANIFEST.2", None),
    "the manifest": (f"{PLACE}/MANIFEST.part", None),
    "the name of the manifest": (f"{PLACE}/.", 2),
    "the tombstone": (f"{PLACE}/.", 3),
}


@pytest.mark.parametrize("what", ABLATIONS)
def test_without_its_fsync_a_crash_breaks_a_promise(what: str) -> None:
    site, which = ABLATIONS[what]
    io = ForgetfulIO(lambda at, nth: at == site and which in (None, nth))
    run(io)
    assert io.skipped > 0, f"nothing syncs {site} any more: {sorted(io.sites)}"
    assert violations(io, stop_at_first=True)[2] != []


def test_every_fsync_of_the_protocol_has_an_ablation() -> None:
    io = ForgetfulIO(lambda site, nth: False)
    run(io)
    assert set(io.sites) == {site for site, _ in ABLATIONS.values()}


def test_after_any_crash_the_next_process_claims_saves_and_prunes() -> None:
    io = ForgetfulIO(lambda site, nth: False)
    run(io)
    seen = set()
    for state in crash_states(io.recording, samples=6):
        key = (state.tree.fingerprint(), state.promises)
        if key in seen:
            continue
        seen.add(key)
        claimed = [int(mark.value) for mark in state.promises if mark.label == "claimed"]
        heir = CheckpointStore("/run", io=MemoryIO(state.tree), threads=1)
        epoch = heir.claim()
        assert epoch > max(claimed, default=0)
        newest_before = max(heir.names(), default="")
        ledger = Ledger()
        for step in (100, 101, 102):
            ledger.committed.add(str(save(heir, step, writer_epoch=epoch).name))
        result = prune(heir, Retention(latest=2), ledger)
        assert result.refused is None
        loaded = newest_valid(heir)
        assert loaded is not None
        assert (loaded.found.step, str(loaded.found.name) > newest_before) == (102, True)
        assert heir.leftovers() == [] or all("e00000001" in name for name in heir.leftovers())
