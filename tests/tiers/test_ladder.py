"""All tiers read as one store: nearest first, chunk by chunk, and never a word too few about what was bad."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tier_samples import CHUNK, UUID, content, copy_to, directory, draft, flip, place, save, sources

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.read import read_files
from holdfast.checkpoints.verify import verify
from holdfast.checkpoints.write import write_checkpoint
from holdfast.errors import (
    CorruptCheckpoint,
    InternalError,
    NoValidCheckpoint,
    StoreError,
    StoreNotFound,
    StoreUnavailable,
)
from holdfast.stores.base import Store
from holdfast.stores.patience import Patience
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import image_of
from holdfast.testing.store_contract import newest_valid
from holdfast.tiers.ladder import Fallback, Ladder, NamedTier
from holdfast.tiers.memory import MemoryTier
from holdfast.tiers.named_tier import HoldersAway

Make = Callable[[str], CheckpointStore]
SIZES = (2 * CHUNK + 5000, 300)
AT_ONCE, QUICK = Patience(attempts=1), Patience(attempts=6, first_pause=0.001)


class Tiers:
    """Memory, a near and a far directory with one checkpoint in all of them, and what was said."""

    def __init__(self, memory: MemoryTier, make_directory: Make, sizes: tuple[int, int] = SIZES) -> None:
        self.memory, self.near, self.far = memory, make_directory("near"), make_directory("far")
        self.name = str(save(memory, 7, sizes).name)
        copy_to(self.near, memory, self.name)
        copy_to(self.far, memory, self.name)
        self.said: list[Fallback] = []
        self.ladder = Ladder(
            [NamedTier("memory", memory), NamedTier("near", self.near), NamedTier("far", self.far)],
            tell=self.said.append,
        )

    def file(self, tier: str, file: str = "model.bin") -> Path:
        if tier == "memory":
            return Path(next(s.path for s in self.memory.slots if s.sealed == self.name), file)
        return place({"near": self.near, "far": self.far}[tier], self.name) / file


@pytest.fixture
def tiers(memory: MemoryTier, make_directory: Make) -> Tiers:
    return Tiers(memory, make_directory)


def check(tiers: Tiers, sizes: tuple[int, int] = SIZES) -> None:
    loaded = newest_valid(tiers.ladder)
    assert loaded is not None
    assert loaded.files["model.bin"] == content(7, "model.bin", sizes[0])
    assert loaded.files["state.bin"] == content(7, "state.bin", sizes[1])


def test_the_nearest_tier_serves_everything(tiers: Tiers) -> None:
    check(tiers)
    assert tiers.ladder.bytes_by_tier == {"memory": sum(SIZES), "near": 0, "far": 0}
    assert tiers.said == []


def test_a_damaged_chunk_comes_from_the_next_tier_and_only_that_chunk(tiers: Tiers) -> None:
    flip(tiers.file("memory"), CHUNK + 17)
    check(tiers)
    assert tiers.ladder.bytes_by_tier == {"memory": sum(SIZES), "near": CHUNK, "far": 0}
    [said] = tiers.said
    assert (said.checkpoint, said.tier, said.file, said.chunk) == (tiers.name, "memory", "model.bin", 1)
    assert "digest" in said.why


def test_three_copies_each_with_damage_make_one_whole(tiers: Tiers) -> None:
    flip(tiers.file("memory"), 0)
    flip(tiers.file("near"), CHUNK)
    flip(tiers.file("near"), 1)
    flip(tiers.file("memory"), 2 * CHUNK)
    flip(tiers.file("far"), 2 * CHUNK + 4999)
    tiers.file("memory", "state.bin").unlink()
    check(tiers)
    assert {(s.tier, s.file, s.chunk) for s in tiers.said} == {
        ("memory", "model.bin", 0),
        ("near", "model.bin", 0),
        ("memory", "model.bin", 2),
        ("memory", "state.bin", None),
    }


def test_a_missing_or_short_file_comes_from_the_next_tier(tiers: Tiers) -> None:
    tiers.file("memory").unlink()
    tiers.file("near").write_bytes(b"short")
    check(tiers)
    assert tiers.ladder.bytes_by_tier["far"] == SIZES[0]
    assert [(s.tier, s.chunk) for s in tiers.said] == [("memory", None), ("near", None)]


def test_what_is_good_nowhere_is_an_error_that_names_every_tier(tiers: Tiers) -> None:
    for tier in ("memory", "near", "far"):
        flip(tiers.file(tier), CHUNK)
    with pytest.raises(NoValidCheckpoint, match=r"chunk 1 of model.bin .* memory: .* near: .* far: "):
        newest_valid(tiers.ladder)


def test_the_newest_of_all_tiers_wins_and_an_older_one_is_fallen_back_to(tiers: Tiers) -> None:
    newer = str(save(tiers.near, 9).name)
    assert [found.step for found in committed(tiers.ladder)] == [9, 7]
    flip(place(tiers.near, newer) / "model.bin", 10)
    rejected: list[str] = []
    loaded = newest_valid(tiers.ladder, reject=lambda found, why: rejected.append(str(found.name)))
    assert loaded is not None
    assert (loaded.manifest.step, rejected) == (7, [newer])


def test_files_of_one_checkpoint_may_lie_in_different_tiers(tiers: Tiers) -> None:
    tiers.file("memory", "state.bin").unlink()
    tiers.file("near").unlink()
    tiers.file("far").unlink()
    tiers.file("far", "state.bin").unlink()
    check(tiers)


def test_partial_tiers_need_no_excuse_for_what_they_lack(tiers: Tiers) -> None:
    tiers.file("memory", "state.bin").unlink()
    said: list[Fallback] = []
    ladder = Ladder(
        [NamedTier("memory", tiers.memory, partial=True), NamedTier("far", tiers.far)], tell=said.append
    )
    loaded = newest_valid(ladder)
    assert loaded is not None
    assert said == []
    assert ladder.bytes_by_tier == {"memory": SIZES[0], "far": SIZES[1]}


def test_a_damaged_manifest_is_read_elsewhere_and_its_files_still_serve(tiers: Tiers) -> None:
    flip(tiers.file("memory", f"MANIFEST.{tiers.name}"), 30)
    check(tiers)
    assert tiers.ladder.bytes_by_tier["far"] == 0
    assert tiers.said[0].tier == "memory"


def test_two_checkpoints_of_one_name_are_never_mixed(memory: MemoryTier, make_directory: Make) -> None:
    near, far = make_directory("near"), make_directory("far")
    same = "0000beef"
    write_checkpoint(near, draft(7, nonce=same, reason="one"), sources(7))
    name = str(write_checkpoint(far, draft(7, nonce=same, reason="two"), sources(7)).name)
    said: list[Fallback] = []
    ladder = Ladder([NamedTier("near", near), NamedTier("far", far)], tell=said.append)
    flip(place(near, name) / "model.bin", 3)
    with pytest.raises(NoValidCheckpoint):
        newest_valid(ladder)
    assert any("another checkpoint of the same name" in one.why for one in said)


class Away:
    """A store that cannot be reached, as a node that is down."""

    def __init__(self, like: CheckpointStore) -> None:
        self.properties, self.where, self.uuid = like.properties, like.where, UUID

    def names(self, *args: object) -> list[str]:
        raise StoreUnavailable(f"{self.where} does not answer")

    manifest = open = begin = write = publish = abandon = leftovers = retire = names


def test_a_node_that_is_down_is_passed_over_and_a_lasting_store_is_not(tiers: Tiers) -> None:
    away = Away(tiers.far)
    away.properties = tiers.memory.properties
    said: list[Fallback] = []
    peer = NamedTier("peer", away, elsewhere=True)  # type: ignore[arg-type]
    ladder = Ladder([peer, NamedTier("near", tiers.near)], tell=said.append)
    loaded = newest_valid(ladder)
    assert loaded is not None
    assert {one.tier for one in said} == {"peer"}
    away.properties = tiers.far.properties
    with pytest.raises(StoreError, match="does not answer"):
        newest_valid(ladder, patience=AT_ONCE)


class Stumbling:
    """A store whose calls of one kind fail, `times` times."""

    def __init__(self, store: Store, verb: str, times: int, error: StoreError | CorruptCheckpoint) -> None:
        self._store, self._verb, self.left, self._error = store, verb, times, error

    def __getattr__(self, verb: str) -> object:
        if verb == self._verb and self.left > 0:
            self.left -= 1
            raise self._error
        return getattr(self._store, verb)


@pytest.mark.parametrize("verb", ["names", "manifest", "open"])
def test_a_copy_that_cannot_be_read_for_now_is_not_a_copy_that_is_lost(
    memory: MemoryTier, make_directory: Make, verb: str
) -> None:
    home = make_directory("home")
    save(home, 3, SIZES)
    newest = save(memory, 7, SIZES)
    near = Stumbling(memory, verb, 10**6, StoreUnavailable("too many open files"))
    ladder = Ladder([NamedTier("memory", near, partial=True), NamedTier("home", home)])  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable, match="too many open files"):
        newest_valid(ladder, patience=AT_ONCE)
    near.left = 2
    loaded = newest_valid(ladder, patience=QUICK)
    assert loaded is not None
    assert loaded.found.name == newest.name


def test_what_only_a_node_that_is_away_had_is_told_apart_from_what_is_damaged(
    memory: MemoryTier, make_directory: Make
) -> None:
    save(memory, 7, SIZES)
    away = Stumbling(memory, "open", 10**6, StoreUnavailable("no answer"))
    ladder = Ladder([NamedTier("peer", away, partial=True, elsewhere=True)])  # type: ignore[arg-type]
    [found] = committed(ladder)
    with pytest.raises(HoldersAway, match="no answer"):
        read_files(ladder, found)


def test_small_pieces_are_checked_too(tiers: Tiers) -> None:
    [found] = committed(tiers.ladder)
    flip(tiers.file("memory"), CHUNK - 1)
    file = tiers.ladder.open(tiers.name, "model.bin")
    got = bytearray(2000)
    file.read_into(CHUNK - 1000, memoryview(got))
    file.close()
    assert got == content(7, "model.bin", SIZES[0])[CHUNK - 1000 : CHUNK + 1000]
    assert tiers.said[0].chunk == 0
    assert verify(tiers.ladder, found, headers=False).is_whole


def test_reading_past_the_end_is_an_error(tiers: Tiers) -> None:
    file = tiers.ladder.open(tiers.name, "state.bin")
    with pytest.raises(CorruptCheckpoint, match="ends at byte 300"):
        file.read_into(299, memoryview(bytearray(2)))
    file.close()


def test_only_wanted_files_are_read(tiers: Tiers) -> None:
    [found] = committed(tiers.ladder)
    read_files(tiers.ladder, found, ["state.bin"])
    assert tiers.ladder.bytes_by_tier["memory"] == 300


def test_a_ladder_is_not_written_to(tiers: Tiers) -> None:
    with pytest.raises(InternalError):
        save(tiers.ladder, 8)
    with pytest.raises(InternalError):
        tiers.ladder.retire(tiers.name)
    with pytest.raises(InternalError):
        Ladder([])


def test_an_open_file_survives_the_pruning_of_its_name(tmp_path: Path) -> None:
    store = directory(tmp_path / "only")
    name = str(save(store, 1).name)
    file = Ladder([NamedTier("only", store)]).open(name, "model.bin")
    store.retire(name)
    got = bytearray(5000)
    file.read_into(0, memoryview(got))
    file.close()
    store.release()
    assert got == content(1, "model.bin", 5000)


class Counted:
    """A tier of one node: forwards, and counts how often its manifest is fetched."""

    def __init__(self, store: CheckpointStore, *, has: frozenset[str]) -> None:
        self._store, self._has = store, has
        self.manifests = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def manifest(self, name: str) -> bytes:
        self.manifests += 1
        return self._store.manifest(name)

    def open(self, name: str, file: str) -> object:
        if file not in self._has:
            raise StoreNotFound(f"{file} is on another node")
        return self._store.open(name, file)


def test_a_manifest_is_fetched_once_however_many_files_and_from_no_node_that_has_none(
    make_directory: Make,
) -> None:
    store = make_directory("all")
    files = [f"r{number:05d}-000.bin" for number in range(20)]
    images = [image_of(number, name=file) for number, file in enumerate(files)]
    write_checkpoint(store, draft(7), images)
    mine, other, empty = (Counted(store, has=frozenset(part)) for part in (files[:10], files[10:], ()))
    tiers = [NamedTier(name, one, partial=True) for name, one in (("a", mine), ("b", empty), ("c", other))]  # type: ignore[arg-type]
    loaded = newest_valid(Ladder(tiers))
    assert loaded is not None
    assert set(loaded.files) == set(files)
    # One to find it, one to know which it is, one to compare with: whatever the number of files.
    assert mine.manifests <= 3
    assert other.manifests == 1
    assert empty.manifests == 0
