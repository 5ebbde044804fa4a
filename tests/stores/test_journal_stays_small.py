"""The journal of a month: bounded, quick to open, and the run's story is still in it."""

import itertools
import os
from pathlib import Path

import pytest

from holdfast.errors import StoreError
from holdfast.events import Progress, RunEnded, RunStarted, SaveCommitted, Warned
from holdfast.stores.journal import Journal, read_events
from holdfast.stores.journal_rotation import MOST_BYTES, TURNING, rotate
from holdfast.testing.failing_io import FailingIO
from holdfast.testing.memory_io import MemoryIO
from holdfast.tiers.tier_list import recall_tiers

SIZE = 2000


def live(journal: Journal, number: int) -> None:
    """One life of a job: it starts, saves for long, and dies without a word."""
    start = float(number * SIZE)
    journal.append(RunStarted(time=start, step=0, host="h", pid=number, writer_epoch=number + 1))
    saves = [
        SaveCommitted(
            time=start + step, step=step, name=f"e{number:08d}-s{step:012d}-00000000", persist_seconds=0.5,
            bytes=10**9, reason="the interval has passed and something else is said here as well",
        )
        for step in range(1, SIZE)
    ]  # fmt: skip
    for at in range(0, len(saves), 100):
        journal.append(*saves[at : at + 100])


def test_a_long_run_keeps_its_story_and_a_bounded_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(30):
        live(journal, number)
    journal.append(RunEnded(time=1e9, step=9, how="finished"))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 3 * MOST_BYTES
    assert len(list(tmp_path.iterdir())) == 2
    events = read_events(tmp_path)
    assert [event.pid for event in events if isinstance(event, RunStarted)] == list(range(30))
    assert isinstance(events[-1], RunEnded)
    assert [event.time for event in events] == sorted(event.time for event in events)
    # When each life ended is known by its last sign of life, and that is kept, too.
    for before, event in itertools.pairwise(events):
        if isinstance(event, RunStarted):
            assert (before.time + 1) % SIZE == 0
    assert journal.dropped == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_whatever_fails_while_it_is_made_small_costs_no_line_of_the_story(persistent: bool) -> None:
    for nth in range(1, 40):
        memory = MemoryIO()
        Journal("/run", io=memory).append(*[Warned(time=float(n), message="x") for n in range(10)])
        failing = FailingIO(memory, nth, persistent=persistent)
        root = failing.inner.open_root("/run", create=False)
        try:
            rotate(failing, root)
        except OSError:
            assert failing.fired
        assert [event.time for event in read_events("/run", io=memory)] == [float(n) for n in range(10)]
        memory.close(root)
        Journal("/run", io=memory).append(Warned(time=10.0, message="x"))
        root = memory.open_root("/run", create=False)
        rotate(memory, root)
        memory.close(root)
        assert [event.time for event in read_events("/run", io=memory)] == [float(n) for n in range(11)]
        assert TURNING not in memory.tree.directories[0]
        if not failing.fired:
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_a_pipe_in_place_of_a_small_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.write_bytes(b"precious\n")
    for name in ("events.jsonl", "tiers.json"):
        if kind == "link":
            (run / name).symlink_to(outside)
        else:
            os.mkfifo(run / name)
    with pytest.raises(StoreError):
        read_events(run)
    with pytest.raises(StoreError):
        recall_tiers(run)
    # A pipe that somebody reads could be written to; nothing is.
    reader = os.open(run / "events.jsonl", os.O_RDONLY | os.O_NONBLOCK) if kind == "pipe" else None
    journal = Journal(run)
    journal.append(Warned(time=1.0, message="x"))
    assert journal.dropped == 1
    assert outside.read_bytes() == b"precious\n"
    if reader is not None:
        assert os.read(reader, 10) == b""
        os.close(reader)


def test_a_month_of_progress_is_read_from_its_end(tmp_path: Path) -> None:
    """As an older version left it: one file, never made small."""
    line = Progress(time=1.0, step=1, epoch=0, step_seconds=1.0).to_line() + "\n"
    (tmp_path / "events.jsonl").write_text(line * (24_000_000 // len(line)))
    journal = Journal(tmp_path)
    journal.append(Warned(time=2.0, message="new"))
    assert read_events(tmp_path)[-1] == Warned(time=2.0, message="new")
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < MOST_BYTES
