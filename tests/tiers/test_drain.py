"""Copies outward: at each tier's rhythm, verified, resumable, and never in training's way."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tier_samples import CHUNK, UUID, content, copy_to, flip, place, save

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Retention, parse_keep
from holdfast.checkpoints.verify import verify
from holdfast.clock import SystemClock
from holdfast.errors import SaveError, StoreFull
from holdfast.events import Event, Flushed, FlushFailed, FlushSkipped, Pruned
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import ImageSource, Store
from holdfast.stores.locations import node_store
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import MemoryImage
from holdfast.testing.store_contract import newest_valid
from holdfast.tiers.bandwidth import Bandwidth, Cancelled
from holdfast.tiers.copying import Copier, SourceLost
from holdfast.tiers.drain import Drain, FlushTier
from holdfast.tiers.flusher import Flusher, Share
from holdfast.tiers.ladder import Ladder, NamedTier
from holdfast.tiers.memory import MemoryTier

Make = Callable[[str], CheckpointStore]
LIMIT = 30.0


class Setting:
    """A near and a far directory, a drain between them, and what it said."""

    def __init__(self, make_directory: Make) -> None:
        self.near, self.far = make_directory("near"), make_directory("far")
        self.events: list[Event] = []
        self.drains: list[Drain] = []

    @property
    def ladder(self) -> Ladder:
        return Ladder([NamedTier("near", self.near), NamedTier("far", self.far)])

    def drain(self, target: Store | None = None, **more: object) -> Drain:
        tier = FlushTier("far", target or self.far, **more)  # type: ignore[arg-type]
        self.drains.append(Drain(self.ladder, [tier], emit=self.events.append))
        return self.drains[-1]

    def save(self, step: int, *drains: Drain, sizes: tuple[int, int] = (5000, 300)) -> str:
        name = str(save(self.near, step, sizes).name)
        for drain in drains:
            drain.committed(name)
        return name

    def steps(self) -> list[int]:
        return sorted(found.step for found in committed(self.far))

    def said(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def setting(make_directory: Make) -> Iterator[Setting]:
    made = Setting(make_directory)
    yield made
    for drain in made.drains:
        drain.stop(0.0)


def test_every_tenth_of_a_hundred_and_the_last_one(setting: Setting) -> None:
    drain = setting.drain(every=10)
    for step in range(1, 100):
        setting.save(step, drain)
    assert drain.wait_idle(LIMIT)
    assert setting.steps() == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    setting.save(100, drain)
    setting.save(101, drain)
    assert drain.stop(LIMIT) == []
    assert setting.steps() == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 101]
    for found in committed(setting.far):
        assert verify(setting.far, found, headers=False).is_whole
        assert setting.far.manifest(str(found.name)) == setting.near.manifest(str(found.name))
    assert len(setting.said(Flushed)) == 11


class Around(CheckpointStore):
    """The same store, claimed by the same process, with something in the way."""

    def __init__(self, store: CheckpointStore) -> None:
        vars(self).update(vars(store))


class Gate(Around):
    """A target that takes its time: nothing gets its name before the gate is opened."""

    def __init__(self, store: CheckpointStore) -> None:
        super().__init__(store)
        self.begun, self.opened = threading.Event(), threading.Event()

    def write(self, name: str, source: ImageSource, **more: Any) -> FileRecord:
        self.begun.set()
        assert self.opened.wait(LIMIT)
        return super().write(name, source, **more)


def test_a_slow_target_blocks_nobody_and_gets_the_newest_next(setting: Setting) -> None:
    gate = Gate(setting.far)
    drain = setting.drain(gate)
    first = setting.save(1, drain)
    assert gate.begun.wait(LIMIT)
    for step in range(2, 50):
        setting.save(step, drain)
    assert drain.needed == {first}, "nearer tiers keep what is being copied"
    gate.opened.set()
    assert drain.wait_idle(LIMIT)
    assert setting.steps() == [1, 49]
    assert drain.needed == frozenset()


def test_what_the_rules_keep_goes_outward_whatever_the_rhythm(setting: Setting) -> None:
    rules = parse_keep("latest 2, best of -val_loss, epoch ends, every 100 steps")
    drain = setting.drain(every=1000, retention=rules)
    more: dict[int, dict[str, Any]] = {
        3: {"keep": "paper"}, 5: {"tags": ("epoch-end",)}, 6: {"metrics": {"val_loss": 0.5}},
        7: {"metrics": {"val_loss": 0.7}}, 8: {"metrics": {"val_loss": 0.2}},
    }  # fmt: skip
    for step in range(1, 10):
        done = save(setting.near, step, **more.get(step, {}))
        drain.committed(str(done.name), done.manifest)
    assert drain.wait_idle(LIMIT)
    # 1 is the first of its hundred steps. 6 was the best for a while, 7 never was.
    assert set(setting.steps()) - {6} == {1, 3, 5, 8}


def test_what_the_rules_keep_is_not_superseded_and_stays_near_until_it_is_copied(setting: Setting) -> None:
    gate = Gate(setting.far)
    drain = setting.drain(gate, retention=Retention())
    first = setting.save(1, drain)
    assert gate.begun.wait(LIMIT)
    kept = []
    for step in range(2, 9):
        done = save(setting.near, step, **({"keep": "paper"} if step in (3, 5) else {}))
        drain.committed(str(done.name), done.manifest)
        kept += [str(done.name)] if step in (3, 5) else []
    assert drain.needed == {first, *kept}
    gate.opened.set()
    assert drain.wait_idle(LIMIT)
    assert {3, 5, 8} <= set(setting.steps())
    assert drain.needed == frozenset()


def test_what_the_rules_keep_and_an_earlier_process_did_not_copy_is_copied_by_the_next(
    setting: Setting,
) -> None:
    save(setting.near, 1, keep="paper")
    for step in (2, 3):
        setting.save(step)
    drain = setting.drain(every=10, retention=Retention())
    drain.catch_up()
    assert drain.stop(LIMIT) == []
    assert setting.steps() == [1, 3]


class FullUntilSwept(Around):
    """A place that what was begun there has filled."""

    def write(self, name: str, source: ImageSource, **more: Any) -> FileRecord:
        if any(begun < name for begun in self.leftovers(before=name)):
            raise StoreFull("no room")
        return super().write(name, source, **more)


def test_a_full_target_gives_back_what_was_begun_there_and_never_finished(setting: Setting) -> None:
    old = setting.save(1)
    Copier(Ladder([NamedTier("near", setting.near)]), setting.far).copy(old)
    drain = setting.drain(FullUntilSwept(setting.far), retention=Retention())
    setting.save(2, drain)
    assert drain.stop(LIMIT) == []
    assert setting.steps() == [2]


def test_at_the_end_what_other_nodes_have_already_brought_of_older_ones_stays(setting: Setting) -> None:
    gate = Gate(setting.far)
    drain = setting.drain(gate, retention=Retention())
    setting.save(1, drain)
    assert gate.begun.wait(LIMIT)
    kept = save(setting.near, 2, keep="paper")
    drain.committed(str(kept.name), kept.manifest)
    setting.save(3, drain)
    # Another node is ahead: it has copied its part of the older one, and has said so.
    elsewhere = node_store(setting.far.where)
    elsewhere.write(str(kept.name), MemoryImage("of-another-node.bin", b"its part"))
    swept: list[str] = []
    gate.abandon = swept.append  # type: ignore[method-assign]
    [flusher] = drain.flushers
    flusher.begin_stop()
    gate.opened.set()
    assert flusher.end_stop(LIMIT)
    assert {2, 3} <= set(setting.steps())
    assert swept == []


def test_a_throttled_copy_gives_up_in_time_and_is_finished_by_the_next(setting: Setting) -> None:
    drain = setting.drain(bytes_per_second=1000)
    name = setting.save(1, drain, sizes=(CHUNK + 5, 3 * CHUNK))
    assert drain.stop(0.2) == ["far"]
    assert setting.steps() == []
    again = setting.drain()
    again.catch_up()
    assert again.stop(LIMIT) == []
    assert setting.far.names() == [name]
    assert os.listdir(Path(setting.far.where) / "ckpt") == [name]


def test_killed_in_mid_flush_another_process_finishes_it(setting: Setting, tmp_path: Path) -> None:
    sizes = (5000, 3 * CHUNK + 11)
    name = setting.save(7, sizes=sizes)
    setting.far.release()
    command = [sys.executable, str(Path(__file__).parent / "flush_and_die.py")]
    command += [setting.near.where, setting.far.where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline().strip() for _ in range(3)]
        assert said == ["begin model.bin", "done model.bin", "begin state.bin"]
        child.send_signal(signal.SIGKILL)
    assert setting.far.names() == []
    setting.far.claim()
    ladder = Ladder([NamedTier("near", setting.near)])
    copier = Copier(ladder, setting.far)
    copier.copy(name)
    assert ladder.bytes_by_tier["near"] == sizes[1], "the file that was whole is not read again"
    copier.publish(name)
    loaded = newest_valid(setting.far)
    assert loaded is not None
    assert loaded.files["model.bin"] == content(7, "model.bin", sizes[0])
    assert loaded.files["state.bin"] == content(7, "state.bin", sizes[1])
    assert sorted(os.listdir(place(setting.far, name))) == [
        "MANIFEST",
        "MANIFEST.2",
        "model.bin",
        "state.bin",
    ]


def test_a_file_that_a_dead_process_left_damaged_is_written_again(setting: Setting) -> None:
    name = setting.save(7)
    copier = Copier(Ladder([NamedTier("near", setting.near)]), setting.far)
    copier.copy(name)
    flip(Path(setting.far.where, "ckpt", f"{name}.incoming", "model.bin"), 100)
    heir = Copier(Ladder([NamedTier("near", setting.near)]), setting.far)
    heir.copy(name)
    heir.publish(name)
    assert verify(setting.far, committed(setting.far)[0], headers=False).is_whole


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "far"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_is_reported_tried_again_and_forgiven(
    small_disk: Path, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.tiers.flusher._FIRST_RETRY", 0.01)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(20 << 20))
    failed = threading.Event()

    def emit(event: Event) -> None:
        setting.events.append(event)
        if isinstance(event, FlushFailed):
            failed.set()

    drain = Drain(setting.ladder, [FlushTier("far", setting.far)], emit=emit)
    setting.save(1, drain)
    assert failed.wait(LIMIT)
    filler.unlink()
    setting.save(2, drain)
    assert drain.stop(LIMIT) == []
    assert setting.steps()[-1] == 2
    [first, *_] = setting.said(FlushFailed)
    assert isinstance(first, FlushFailed)
    assert "free" in first.error


def test_a_source_that_is_gone_is_skipped_with_a_word(setting: Setting) -> None:
    gate = Gate(setting.far)
    drain = setting.drain(gate, every=1)
    setting.save(1, drain)
    assert gate.begun.wait(LIMIT)
    gone = setting.save(2, drain)
    setting.save(3, drain)
    setting.near.retire(gone)
    gate.opened.set()
    assert drain.stop(LIMIT) == []
    assert setting.steps() == [1, 3]
    [skipped] = setting.said(FlushSkipped)
    assert isinstance(skipped, FlushSkipped)
    assert skipped.name == gone


def test_damage_on_the_way_out_is_never_committed(setting: Setting) -> None:
    name = setting.save(1)
    flip(place(setting.near, name) / "model.bin", 77)
    copier = Copier(Ladder([NamedTier("near", setting.near)]), setting.far)
    with pytest.raises(SourceLost, match="good in no tier"):
        copier.copy(name)
    assert setting.far.names() == []


def test_a_writer_that_was_taken_over_commits_no_copies(setting: Setting) -> None:
    drain = setting.drain(retention=Retention())
    heir = CheckpointStore(setting.far.where)
    heir.claim(take_over=True)
    setting.save(1, drain)
    assert drain.stop(LIMIT) == ["far"]
    assert drain.needed == frozenset()
    assert setting.steps() == []
    [skipped] = setting.said(FlushSkipped)
    assert "taken over" in str(skipped)
    heir.release()


def test_each_tier_keeps_by_its_own_rule(setting: Setting) -> None:
    drain = setting.drain(every=1, retention=Retention(latest=2))
    for step in range(1, 6):
        setting.save(step, drain)
    assert drain.stop(LIMIT) == []
    assert setting.steps() == [4, 5]
    assert len(committed(setting.near)) == 5
    assert len(setting.said(Pruned)) == 3


def test_what_is_needed_elsewhere_is_not_pruned(make_directory: Make) -> None:
    near, middle, far = make_directory("near"), make_directory("middle"), make_directory("far")
    ladder = Ladder([NamedTier(n, s) for n, s in (("near", near), ("middle", middle), ("far", far))])
    gate = Gate(far)
    targets = [
        FlushTier("middle", middle, every=1, retention=Retention(latest=2)),
        FlushTier("far", gate, every=1),
    ]
    drain = Drain(ladder, targets)
    first = str(save(near, 1).name)
    drain.committed(first)
    assert gate.begun.wait(LIMIT)
    for step in range(2, 6):
        drain.committed(str(save(near, step).name))
    assert drain.flushers[0].wait_idle(LIMIT)
    drain.flushers[0].begin_stop()
    assert drain.flushers[0].end_stop(LIMIT)
    assert first in middle.names()
    gate.opened.set()
    assert drain.stop(LIMIT) == []


def test_several_ranks_fill_one_place_and_one_of_them_publishes(setting: Setting) -> None:
    name = setting.save(1)
    published = threading.Barrier(2)

    def vote(copier: Copier, name: str) -> None:
        if published.wait(LIMIT) == 0:
            assert copier.is_complete(name)
            copier.publish(name)
        published.wait(LIMIT)

    ranks = []
    for file in ("model.bin", "state.bin"):
        share = Share(files=lambda manifest, file=file: [file], publish=vote)  # type: ignore[misc]
        tier = FlushTier("far", setting.far)
        near = setting.ladder.without("far")
        ranks.append(Flusher(tier, near, emit=lambda event: None, clock=SystemClock(), share=share))
    for rank in ranks:
        rank.committed(name)
    for rank in ranks:
        rank.begin_stop()
    assert [rank.end_stop(LIMIT) for rank in ranks] == [True, True]
    assert verify(setting.far, committed(setting.far)[0], headers=False).is_whole


def test_a_place_without_all_files_is_not_published(setting: Setting) -> None:
    name = setting.save(1)
    copier = Copier(setting.ladder.without("far"), setting.far)
    copier.copy(name, ["model.bin"])
    assert not copier.is_complete(name)
    with pytest.raises(SaveError, match="not every file"):
        copier.publish(name)
    assert setting.far.names() == []


def test_memory_is_drained_to_disk_while_its_slots_turn(memory: MemoryTier, make_directory: Make) -> None:
    far = make_directory("far")
    ladder = Ladder([NamedTier("memory", memory), NamedTier("far", far)])
    drain = Drain(ladder, [FlushTier("far", far, every=5)])
    for step in range(1, 21):
        if memory.next_slot(spare=drain.needed) is None:
            assert drain.wait_idle(LIMIT)
        drain.committed(str(save(memory, step).name))
        if step % 5 == 0:
            assert drain.wait_idle(LIMIT)
    assert drain.stop(LIMIT) == []
    assert sorted(found.step for found in committed(far)) == [5, 10, 15, 20]


def test_a_store_that_knows_only_the_plain_verbs_is_a_target_too(setting: Setting) -> None:
    name = setting.save(1)
    near = Ladder([NamedTier("near", setting.near)])
    Copier(near, setting.far).copy(name, ["state.bin"])
    heir = Copier(near, setting.far)
    heir.copy(name)
    heir.publish(name)
    assert setting.far.manifest(name) == setting.near.manifest(name)
    assert near.bytes_by_tier["near"] == 5300, "what the first had finished was kept"
    assert newest_valid(setting.far) is not None


def test_bandwidth_is_what_was_asked_for_by_the_clock_and_can_be_interrupted() -> None:
    from holdfast.testing import FakeClock

    clock, cancel = FakeClock(), threading.Event()
    bandwidth = Bandwidth(1000, clock=clock)
    bandwidth.take(3000, cancel)
    assert bandwidth._wait_for() == pytest.approx(2.0)
    clock.advance(2.0)
    bandwidth.take(10, cancel)
    cancel.set()
    with pytest.raises(Cancelled):
        bandwidth.take(1, cancel)


def test_copies_made_by_plain_verbs_are_recognised(setting: Setting) -> None:
    name = setting.save(1)
    copy_to(setting.far, setting.near, name)
    drain = setting.drain()
    drain.catch_up()
    assert drain.stop(LIMIT) == []
    assert setting.said(Flushed) == []
    assert setting.far.uuid == UUID
