"""Every copy in every tier is looked at, and what another copy can put right is put right, bit for bit."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tier_samples import CHUNK, content, copy_to, draft, flip, place, save, sources

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.verify import verify
from holdfast.checkpoints.write import write_checkpoint
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.ladder import NamedTier
from holdfast.tiers.memory import MemoryTier
from holdfast.tiers.scrub import scrub

Make = Callable[[str], CheckpointStore]
TIERS = ("memory", "near", "far")
PARTS = ("model.bin", "state.bin", "MANIFEST")
SIZES = (CHUNK + 5000, 300)


class Copies:
    def __init__(self, memory: MemoryTier, make_directory: Make, sizes: tuple[int, int] = SIZES) -> None:
        self.sizes = sizes
        self.memory, self.near, self.far = memory, make_directory("near"), make_directory("far")
        self.name = str(save(memory, 7, sizes).name)
        for store in (self.near, self.far):
            copy_to(store, memory, self.name)
        stores = zip(TIERS, (memory, self.near, self.far), strict=True)
        self.tiers = [NamedTier(name, store) for name, store in stores]
        self.before = self.contents()

    def path(self, tier: str, part: str) -> Path:
        if tier == "memory":
            slot = next(slot for slot in self.memory.slots if slot.sealed == self.name)
            return Path(slot.path, f"{part}.{self.name}" if part == "MANIFEST" else part)
        return place({"near": self.near, "far": self.far}[tier], self.name) / part

    def contents(self) -> dict[tuple[str, str], bytes]:
        sizes = dict(zip(PARTS, (*self.sizes, None), strict=True))
        return {
            (tier, part): self.path(tier, part).read_bytes()[: sizes[part]]
            for tier, part in itertools.product(TIERS, PARTS)
        }

    def damage(self, tier: str, part: str, how: str) -> None:
        path = self.path(tier, part)
        if part == "MANIFEST":
            flip(path, 40)
            if tier != "memory":
                flip(path.with_name("MANIFEST.2"), 41)
        elif how == "missing":
            path.unlink()
        elif how == "short":
            os.truncate(path, 100)
        else:
            flip(path, path.stat().st_size // 2 if tier != "memory" else 150)


@pytest.fixture
def copies(memory: MemoryTier, make_directory: Make) -> Copies:
    return Copies(memory, make_directory)


def test_whole_copies_have_nothing_to_say(copies: Copies) -> None:
    [one] = scrub(copies.tiers)
    assert one.is_whole
    assert [copy.problems for copy in one.copies] == [[], [], []]
    assert [copy.bytes_checked for copy in one.copies] == [sum(SIZES)] * 3


def test_every_file_in_every_tier_up_to_all_copies_but_one(memory: MemoryTier, make_directory: Make) -> None:
    """Each part damaged in each set of tiers that leaves one good copy, in each way: all of it comes back."""
    copies = Copies(memory, make_directory, (5000, 300))
    sets = [tiers for count in (1, 2) for tiers in itertools.combinations(TIERS, count)]
    for tiers, part in itertools.product(sets, PARTS):
        for how in ("flipped",) if part == "MANIFEST" else ("flipped", "missing", "short"):
            for tier in tiers:
                copies.damage(tier, part, how)
            [seen] = scrub(copies.tiers)
            assert [copy.tier.name for copy in seen.copies if not copy.is_whole] == list(tiers), (part, how)
            assert seen.is_restorable
            [mended] = scrub(copies.tiers, repair=True)
            assert mended.is_whole, (tiers, part, how, [copy.refused for copy in mended.copies])
            assert copies.contents() == copies.before, (tiers, part, how)
    assert sorted(os.listdir(place(copies.near, copies.name))) == [
        "MANIFEST", "MANIFEST.2", "model.bin", "state.bin",
    ]  # fmt: skip


def test_different_files_lost_in_every_tier_mend_each_other(copies: Copies) -> None:
    copies.damage("memory", "state.bin", "missing")
    copies.damage("near", "model.bin", "missing")
    flip(copies.path("memory", "model.bin"), 3)
    flip(copies.path("far", "model.bin"), CHUNK + 3)
    copies.path("far", "state.bin").unlink()
    [mended] = scrub(copies.tiers, repair=True)
    assert mended.is_whole, [copy.refused for copy in mended.copies]
    assert copies.contents() == copies.before


def test_when_the_last_copy_is_bad_nothing_is_touched_and_it_is_said(copies: Copies) -> None:
    for tier in TIERS:
        flip(copies.path(tier, "model.bin"), 10)
    copies.path("near", "state.bin").unlink()
    damaged = {tier: copies.path(tier, "model.bin").read_bytes() for tier in TIERS}
    [one] = scrub(copies.tiers, repair=True)
    assert not one.is_restorable
    assert one.lost == ["model.bin: chunk 0 is good in no tier"]
    assert all(copy.refused and not copy.repaired for copy in one.copies)
    assert {tier: copies.path(tier, "model.bin").read_bytes() for tier in TIERS} == damaged
    assert not copies.path("near", "state.bin").exists()


def test_one_damaged_record_of_two_is_noticed(copies: Copies) -> None:
    flip(copies.path("far", "MANIFEST"), 5)
    assert verify(copies.far, committed(copies.far)[0]).is_whole, "the second copy hides it from a reader"
    [seen] = scrub(copies.tiers)
    assert not seen.is_whole
    [mended] = scrub(copies.tiers, repair=True)
    assert mended.is_whole
    assert copies.contents() == copies.before


def test_without_deep_only_sizes_are_compared(copies: Copies) -> None:
    flip(copies.path("near", "model.bin"), 10)
    assert scrub(copies.tiers, deep=False)[0].is_whole
    copies.damage("far", "model.bin", "short")
    [seen] = scrub(copies.tiers, deep=False)
    assert [copy.tier.name for copy in seen.copies if copy.problems] == ["far"]


def test_a_partial_tier_may_lack_files(copies: Copies) -> None:
    copies.path("memory", "state.bin").unlink()
    tiers = [NamedTier("memory", copies.memory, partial=True), *copies.tiers[1:]]
    [one] = scrub(tiers, repair=True)
    assert one.is_whole
    assert not copies.path("memory", "state.bin").exists()


def test_two_checkpoints_of_one_name_are_left_alone(make_directory: Make) -> None:
    near, far = make_directory("near"), make_directory("far")
    write_checkpoint(near, draft(7, nonce="0000beef", reason="one"), sources(7))
    name = str(write_checkpoint(far, draft(7, nonce="0000beef", reason="two"), sources(7)).name)
    before = (near.manifest(name), far.manifest(name))
    [one] = scrub([NamedTier("near", near), NamedTier("far", far)], repair=True)
    assert not one.is_whole
    assert "another checkpoint" in one.copies[1].refused[0]
    assert (near.manifest(name), far.manifest(name)) == before


def test_only_the_step_that_was_asked_for(copies: Copies) -> None:
    save(copies.near, 9)
    assert [one.name.step for one in scrub(copies.tiers)] == [9, 7]
    assert [one.name.step for one in scrub(copies.tiers, step=9)] == [9]
    assert content(7, "state.bin", 300) == copies.before["far", "state.bin"]
