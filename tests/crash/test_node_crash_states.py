"""The power goes at every point while a node's store is filled, committed, added to and pruned.

What a node keeps counts as saved when every node has it durably, so it must keep the promises of a shared
folder. Each fsync is taken away in turn, and must be missed.
"""

from collections.abc import Iterator

import pytest
from forgetful_io import ForgetfulIO

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.verify import verify
from holdfast.errors import HoldfastError
from holdfast.format.sealed import check_seal
from holdfast.stores.locations import node_store
from holdfast.stores.store import CheckpointStore
from holdfast.stores.stored_file import read_small
from holdfast.testing.crash_states import CrashState, crash_states
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.recording_io import RecordingIO
from holdfast.testing.store_contract import save

IDENTITY = "00000000-0000-0000-0000-000000000000"
FOR_PARTNER = "r00001-000.safetensors"


def run(io: RecordingIO) -> None:
    """Three saves; each gets a partner's file once it is committed; the first is retired."""
    say, names = io.recording.mark, list[str]()
    store = node_store("/node", io=io, uuid=IDENTITY, threads=1)
    for step in (1, 2, 3):
        names.append(str(save(store, step, nonce=f"{step:08x}").name))
        say("saved", names[-1])
        store.write(names[-1], image_of(step + 100, name=FOR_PARTNER))
        say("held", names[-1])
    say("retiring", names[0])
    store.retire(names[0])


def broken_promises(state: CrashState) -> list[str]:
    store = node_store("/node", io=MemoryIO(state.tree), threads=1)
    retiring = {mark.value for mark in state.promises if mark.label == "retiring"}
    found = {str(one.name): one for one in committed(store)}
    bad = [name for name, one in found.items() if not verify(store, one).is_whole]
    broken = [f"{name} has a manifest over bad data" for name in bad]
    for mark in state.promises:
        if mark.label == "saved" and mark.value not in retiring:
            broken += [] if mark.value in found else [f"{mark.value} was settled and is lost"]
            broken += _records_lost(state, mark.value)
        if mark.label == "held" and mark.value not in retiring and not _holds(store, mark.value):
            broken.append(f"the partner's file of {mark.value} was put there and is lost")
    return broken


def _records_lost(state: CrashState, name: str) -> list[str]:
    """Whose files these are, and both copies of the manifest."""
    io = MemoryIO(state.tree)
    try:
        root = io.open_root("", create=False)
        place = io.open_directory(io.open_directory(root, "ckpt"), name)
        check_seal(read_small(io, root, "STORE.json", 1 << 16))
        for record in ("MANIFEST", "MANIFEST.2"):
            check_seal(read_small(io, place, record, 1 << 20))
    except Exception as error:  # noqa: BLE001  any reason at all is a broken promise
        return [f"a record beside {name} is lost: {error!r}"]
    return []


def _holds(store: CheckpointStore, name: str) -> bool:
    wanted = image_of(int(name.split("-")[1][1:]) + 100, name=FOR_PARTNER)
    buffer = memoryview(bytearray(wanted.size))
    try:
        file = store.open(name, FOR_PARTNER)
        file.read_into(0, buffer)
        file.close()
    except HoldfastError:
        return False
    return buffer == wanted.view(0, wanted.size)


def violations(io: RecordingIO) -> Iterator[list[str]]:
    """What each distinct tree that a crash may leave fails to keep."""
    seen = set()
    for state in crash_states(io.recording):
        key = (state.tree.fingerprint(), state.promises)
        if key not in seen:
            seen.add(key)
            yield broken_promises(state)


PLACE = "ckpt/<name>"
# Every place that syncs, with which of its syncs to skip (none named: all of them). A checkpoint's place is
# synced when its file has come, when it is settled, when the partner's file has come, and when it is retired.
ABLATIONS: dict[str, tuple[str, tuple[int, ...]]] = {
    "the node's own directory": ("/.", ()),
    "the identity": ("STORE.json", ()),
    "the directory of checkpoints": ("ckpt/.", ()),
    "the files": (f"{PLACE}/<part>", ()),
    "the names of files and manifests": (f"{PLACE}/.", (1, 2)),
    "the second manifest": (f"{PLACE}/MANIFEST.2", ()),
    "the manifest": (f"{PLACE}/MANIFEST", ()),
    "the name of a partner's file": (f"{PLACE}/.", (3,)),
    "the tombstone": (f"{PLACE}/.", (4,)),
}


def test_no_crash_breaks_a_promise_of_a_node() -> None:
    io = ForgetfulIO(lambda site, nth: False)
    run(io)
    states = list(violations(io))
    assert [broken for broken in states if broken] == []
    assert len(states) > 100, "a recorder that records nothing would pass everything else"
    assert set(io.sites) == {site for site, _ in ABLATIONS.values()}


@pytest.mark.parametrize("what", ABLATIONS)
def test_without_its_fsync_a_crash_breaks_a_promise_of_a_node(what: str) -> None:
    site, which = ABLATIONS[what]
    io = ForgetfulIO(lambda at, nth: at == site and (not which or nth in which))
    run(io)
    assert io.skipped > 0, f"nothing syncs {site} any more: {sorted(io.sites)}"
    assert any(violations(io))
