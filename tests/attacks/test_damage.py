"""Bytes change on disk: one bit anywhere, a file cut, grown, emptied, lost, swapped. None loads in silence.

"Silent" means: something loads under a checkpoint's name whose bytes are not those that were saved.
"""

import copy
import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.verify import verify
from holdfast.checkpoints.write import write_checkpoint
from holdfast.errors import CorruptCheckpoint, NoValidCheckpoint, StoreError
from holdfast.format.image import parse_image
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import MemoryImage, image_of
from holdfast.testing.memory_io import ROOT, MemoryIO, Tree
from holdfast.testing.store_contract import draft, newest_valid

TORTURE = bool(os.environ.get("HOLDFAST_TORTURE"))
WEIGHTS, OPTIMIZER = "r00000-000.safetensors", "r00000-001.safetensors"


def images(step: int) -> list[MemoryImage]:
    return [image_of(step, name=WEIGHTS, values=8000), image_of(step + 1000, name=OPTIMIZER, values=8000)]


@pytest.fixture(scope="module")
def whole() -> Tree:
    io = MemoryIO()
    store = CheckpointStore("/run", io=io)
    epoch = store.claim()
    for step in (1, 2):
        write_checkpoint(store, draft(step, writer_epoch=epoch), images(step))
    return io.tree


def newest(tree: Tree) -> dict[str, int]:
    """The inodes inside the newest checkpoint."""
    ckpt = tree.directories[tree.directories[ROOT]["ckpt"]]
    return tree.directories[ckpt[max(ckpt)]]


def outcome(tree: Tree) -> tuple[int, list[str]]:
    """The step restored and the rejections on the way; asserts that what loads is what was saved."""
    rejected: list[str] = []

    def note(found: Found, why: str) -> None:
        rejected.append(why)

    loaded = newest_valid(CheckpointStore("/run", io=MemoryIO(tree)), reject=note)
    assert loaded is not None
    for image in images(loaded.found.step):
        assert loaded.files[image.name] == image.view(0, image.size), "loaded other bytes than were saved"
    return loaded.found.step, rejected


def flips(content: bytearray, positions: Iterator[int] | range) -> Iterator[int]:
    """Flip one bit of a byte, yield, flip it back; a long run takes all eight in turn."""
    for position in positions:
        for bit in range(8) if TORTURE else (position % 8,):
            content[position] ^= 1 << bit
            yield position
            content[position] ^= 1 << bit


def test_the_undamaged_newest_is_restored(whole: Tree) -> None:
    assert outcome(whole) == (2, [])


@pytest.mark.parametrize("record", ["MANIFEST", "MANIFEST.2"])
def test_any_flipped_byte_of_one_manifest_costs_nothing(whole: Tree, record: str) -> None:
    tree = copy.deepcopy(whole)
    content = tree.files[newest(tree)[record]]
    for _ in flips(content, range(len(content))):
        assert outcome(tree) == (2, [])


def test_the_same_byte_flipped_in_both_manifests_falls_back(whole: Tree) -> None:
    tree = copy.deepcopy(whole)
    first, second = tree.files[newest(tree)["MANIFEST"]], tree.files[newest(tree)["MANIFEST.2"]]
    for position in flips(first, range(len(first))):
        second[position] ^= 1
        step, rejected = outcome(tree)
        assert (step, len(rejected)) == (1, 1)
        second[position] ^= 1


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER])
def test_any_flipped_byte_of_an_image_header_is_found(whole: Tree, name: str) -> None:
    tree = copy.deepcopy(whole)
    content = tree.files[newest(tree)[name]]
    positions = range(4096) if TORTURE else range(0, 4096, 11)
    for _ in flips(content, positions):
        step, rejected = outcome(tree)
        assert (step, len(rejected)) == (1, 1)
        assert name in rejected[0]


def test_every_997th_flipped_data_byte_is_found_and_its_tensor_named(whole: Tree) -> None:
    tree = copy.deepcopy(whole)
    for name in (WEIGHTS, OPTIMIZER):
        content = tree.files[newest(tree)[name]]
        for _ in flips(content, range(4096, len(content), 997)):
            step, rejected = outcome(tree)
            assert step == 1
            assert "chunk 0" in rejected[0]
            assert "'layer.weight'" in rejected[0]


def test_any_flipped_byte_of_a_bare_header_is_refused_or_harmless() -> None:
    """Without digests, too: what the header parser lets through must still tile the file exactly."""
    image = image_of(1)
    for position in range(4096):
        header = bytearray(image.view(0, 4096))
        for bit in range(8):
            header[position] ^= 1 << bit
            try:
                layout = parse_image(bytes(header), image.size)
            except CorruptCheckpoint:
                pass
            else:
                spans = sorted(layout.spans.values())
                assert spans[0][0] == 4096
                assert spans[-1][1] == image.size
                assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
            header[position] ^= 1 << bit


def cut(to: Callable[[int], int]) -> Callable[[Tree, str], None]:
    def damage(tree: Tree, name: str) -> None:
        tree.resize(newest(tree)[name], to(len(tree.files[newest(tree)[name]])))

    return damage


def zero_fill(tree: Tree, name: str) -> None:
    content = tree.files[newest(tree)[name]]
    content[:] = bytes(len(content))


def zero_last_page(tree: Tree, name: str) -> None:
    tree.files[newest(tree)[name]][-100:] = bytes(100)


def delete(tree: Tree, name: str) -> None:
    del newest(tree)[name]


def swap(tree: Tree, name: str) -> None:
    inside = newest(tree)
    inside[WEIGHTS], inside[OPTIMIZER] = inside[OPTIMIZER], inside[WEIGHTS]


def take_from_older(tree: Tree, name: str) -> None:
    ckpt = tree.directories[tree.directories[ROOT]["ckpt"]]
    newest(tree)[name] = tree.directories[ckpt[min(ckpt)]][name]


def make_directory(tree: Tree, name: str) -> None:
    tree.directories[99_999] = {}
    newest(tree)[name] = 99_999


DAMAGE = {
    "emptied": cut(lambda size: 0),
    "one byte": cut(lambda size: 1),
    "half": cut(lambda size: size // 2),
    "last byte lost": cut(lambda size: size - 1),
    "one byte more": cut(lambda size: size + 1),
    "twice as long": cut(lambda size: 2 * size),
    "zeros": zero_fill,
    "zeros at the end": zero_last_page,
    "deleted": delete,
    "swapped": swap,
    "taken from an older checkpoint": take_from_older,
    "a directory instead": make_directory,
}


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_data_file_is_found_and_passed_over(whole: Tree, how: str, name: str) -> None:
    tree = copy.deepcopy(whole)
    DAMAGE[how](tree, name)
    step, rejected = outcome(tree)
    assert (step, len(rejected)) == (1, 1)
    store = CheckpointStore("/run", io=MemoryIO(tree))
    assert not verify(store, committed(store)[0]).is_whole


@pytest.mark.parametrize("how", sorted(DAMAGE.keys() - {"swapped", "deleted"}))
def test_a_damaged_manifest_is_replaced_by_its_second_copy(whole: Tree, how: str) -> None:
    tree = copy.deepcopy(whole)
    DAMAGE[how](tree, "MANIFEST")
    if how == "taken from an older checkpoint":
        # Whole, but somebody else's: its name gives it away, and the seal does not excuse it.
        step, rejected = outcome(tree)
        assert (step, len(rejected)) == (1, 1)
        assert "belongs to" in rejected[0]
    else:
        assert outcome(tree) == (2, [])


def test_without_its_manifest_a_checkpoint_is_not_committed_whatever_the_copy_says(whole: Tree) -> None:
    tree = copy.deepcopy(whole)
    delete(tree, "MANIFEST")
    assert outcome(tree) == (1, [])


def test_a_checkpoint_copied_under_another_name_is_refused(whole: Tree) -> None:
    tree = copy.deepcopy(whole)
    ckpt = tree.directories[tree.directories[ROOT]["ckpt"]]
    ckpt["e00000009-s000000000009-00000009"] = ckpt[max(ckpt)]
    step, rejected = outcome(tree)
    assert (step, len(rejected)) == (2, 1)


def test_nothing_whole_is_an_error_that_lists_every_reason(whole: Tree) -> None:
    tree = copy.deepcopy(whole)
    ckpt = tree.directories[tree.directories[ROOT]["ckpt"]]
    for place in ckpt.values():
        tree.files[tree.directories[place][WEIGHTS]][5000] ^= 1
    with pytest.raises(NoValidCheckpoint) as refused:
        newest_valid(CheckpointStore("/run", io=MemoryIO(tree)))
    assert all(name in str(refused.value) for name in ckpt)


def test_any_flipped_byte_of_the_identity_stops_the_writer_not_the_reader(whole: Tree) -> None:
    tree = copy.deepcopy(whole)
    content = tree.files[tree.directories[ROOT]["STORE.json"]]
    for _ in flips(content, range(len(content))):
        with pytest.raises(StoreError, match=r"STORE\.json"):
            CheckpointStore("/run", io=MemoryIO(tree)).claim()
    assert outcome(tree) == (2, [])


def test_any_flipped_byte_of_a_claim_still_yields_a_higher_epoch(whole: Tree) -> None:
    writers = whole.directories[whole.directories[ROOT]["writers"]]
    size = len(whole.files[writers["00000001.json"]])
    for position in range(0, size, 5):
        tree = copy.deepcopy(whole)
        tree.files[writers["00000001.json"]][position] ^= 1
        assert CheckpointStore("/run", io=MemoryIO(tree)).claim() == 2
