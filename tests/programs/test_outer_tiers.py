"""`holdfast app --tier`: generations are copied outward behind the program and come back from a good copy."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Retention
from holdfast.checkpoints.verify import verify
from holdfast.cli.main import main
from holdfast.clock import SystemClock
from holdfast.errors import SetupError
from holdfast.events import Event, Flushed, Restored
from holdfast.format.checksum import CHUNK_BYTES
from holdfast.programs.generations import Generations
from holdfast.programs.outer_tiers import claim_home, open_tiers, parse_outer, seconds_for_last_copies
from holdfast.stores.journal import read_events
from holdfast.stores.place import CKPT
from holdfast.stores.store import CheckpointStore

KEEP_TWO = Retention(latest=2)


@contextlib.contextmanager
def generations(folder: Path) -> Iterator[Generations]:
    """Those of one attempt, in `folder`/run and `folder`/far; copying is done when the block ends."""
    clock, events = SystemClock(), list[Event]()
    outer = parse_outer([str(folder / "far")])
    with claim_home(str(folder / "run"), outer, clock) as home:
        tiers = open_tiers(home, outer, KEEP_TWO, clock)
        assert tiers is not None
        try:
            kept = Generations(home, clock, events.append, KEEP_TWO, tiers)
            kept.start_copying()
            yield kept
        finally:
            tiers.close(60.0)


def keep(kept: Generations, folder: Path, data: bytes) -> str:
    (folder / "state").write_bytes(data)
    return str(kept.keep({"state": folder / "state"}, reason="test").name)


def damage(store: Path, name: str, at: int = 0) -> None:
    with open(store / CKPT / name / "file-0000", "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def names(store: Path) -> list[str]:
    return [str(found.name) for found in committed(CheckpointStore(store))]


def put_back(kept: Generations, folder: Path) -> tuple[str, bytes]:
    (folder / "state").unlink(missing_ok=True)
    chosen = kept.newest_good()
    assert chosen is not None
    kept.put_back(chosen, folder, present=[])
    return chosen.name, (folder / "state").read_bytes()


def test_the_newest_ends_in_the_tier_too_and_neither_place_grows(tmp_path: Path) -> None:
    for _ in range(2):
        with generations(tmp_path) as kept:
            made = [keep(kept, tmp_path, bytes([number])) for number in range(5)]
        for place in ("run", "far"):
            assert names(tmp_path / place)[0] == made[-1]
            # Two, and the one that was being copied when the last one was saved.
            assert len(names(tmp_path / place)) <= 3


def test_a_damaged_newest_generation_comes_whole_from_the_tier(tmp_path: Path) -> None:
    with generations(tmp_path) as kept:
        keep(kept, tmp_path, b"older")
        newest = keep(kept, tmp_path, b"newer")
    damage(tmp_path / "run", newest)
    with generations(tmp_path) as kept:
        assert put_back(kept, tmp_path) == (newest, b"newer")


def test_two_damaged_copies_make_one_whole_file(tmp_path: Path) -> None:
    data = os.urandom(CHUNK_BYTES + 100)
    with generations(tmp_path) as kept:
        newest = keep(kept, tmp_path, data)
    damage(tmp_path / "run", newest)
    damage(tmp_path / "far", newest, CHUNK_BYTES)
    with generations(tmp_path) as kept:
        assert put_back(kept, tmp_path) == (newest, data)


def test_images_that_must_lie_in_files_are_fetched_if_the_ones_here_are_damaged(tmp_path: Path) -> None:
    with generations(tmp_path) as kept:
        newest = keep(kept, tmp_path, b"an image")
    with generations(tmp_path) as kept:
        chosen = kept.newest_good()
        assert chosen is not None
        here = tmp_path / "run" / CKPT / newest / "file-0000"
        assert kept.stored_paths(chosen, tmp_path / "fetched") == [here]
        damage(tmp_path / "run", newest)
        fetched = kept.stored_paths(chosen, tmp_path / "fetched")
        assert fetched == [tmp_path / "fetched" / "state"]
        assert fetched[0].read_bytes() == b"an image"


def test_a_lost_folder_is_made_again_as_the_same_run(tmp_path: Path) -> None:
    with generations(tmp_path) as kept:
        keep(kept, tmp_path, b"1")
        newest = keep(kept, tmp_path, b"2")
        uuid = CheckpointStore(tmp_path / "run").uuid
    shutil.rmtree(tmp_path / "run")
    with generations(tmp_path) as kept:
        assert put_back(kept, tmp_path) == (newest, b"2")
        assert kept.number == 2
        later = keep(kept, tmp_path, b"3")
        assert later > newest, "what is saved now must be the newest of all tiers"
    assert CheckpointStore(tmp_path / "run").uuid == uuid
    assert names(tmp_path / "far")[0] == later


def test_what_was_not_copied_is_copied_by_the_next_attempt(tmp_path: Path) -> None:
    with claim_home(str(tmp_path / "run"), (), SystemClock()) as home:
        newest = keep(Generations(home, SystemClock(), lambda event: None, KEEP_TWO), tmp_path, b"1")
    with generations(tmp_path):
        pass
    assert names(tmp_path / "far") == [newest]


@pytest.mark.parametrize("word", ["memory", "run", "single"])
def test_a_place_that_makes_no_sense_is_refused_before_anything_starts(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(["app", "generic", "--tier", "./far", "--tier", word, "--file", "state", "--", "true"])
    assert code == 1
    assert "is no place for copies of a program's files" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_tiers_of_different_runs_are_not_mixed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with CheckpointStore(tmp_path / name) as store:
            store.claim()
    both = parse_outer([str(tmp_path / "a"), str(tmp_path / "b")])
    with pytest.raises(SetupError, match="hold different runs"):
        claim_home(str(tmp_path / "run"), both, SystemClock())
    with pytest.raises(SetupError, match="is the run's own folder"):
        claim_home(str(tmp_path / "a"), both[:1], SystemClock())


def test_who_was_asked_to_stop_says_so_before_the_end_of_the_job() -> None:
    assert seconds_for_last_copies(0, None) == 300
    assert seconds_for_last_copies(75, None) == seconds_for_last_copies(130, 1000.0) == 30
    assert seconds_for_last_copies(75, 25.0) == 15
    assert seconds_for_last_copies(0, 5.0) == 0


# ---- the command itself, and its death


def test_it_needs_no_torch() -> None:
    code = "import sys, holdfast.cli.running.app_cmd; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


BIG = 3 * CHUNK_BYTES
PROGRAM = f"""
if [ "$1" = again ]; then cat small big | wc -c > result; exit; fi
head -c 100 /dev/zero > small; head -c {BIG} /dev/zero > big; exec sleep 100
"""


def app(folder: Path, tier: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli.main", "app", "generic", "--once", "--run", "run",
         "--tier", tier, "--file", "small", "--file", "big", "--trust-files", "--restart", "again",
         "--complete-file", "result", "--", "sh", "-c", PROGRAM, "sh"],
        cwd=folder,
    )  # fmt: skip


def until(process: subprocess.Popen[bytes], happens: Path, pattern: str) -> None:
    end = time.monotonic() + 60
    while not list(happens.glob(pattern)):
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(0.02)


def test_no_thread_is_open_to_a_signal_that_asks_to_stop(tmp_path: Path) -> None:
    """One that was would die of it, and the program would never be asked to save."""
    with claim_home(str(tmp_path / "run"), (), SystemClock()) as home:
        (tmp_path / "big").write_bytes(bytes(2 * CHUNK_BYTES))
        paths = {"big": tmp_path / "big"}
        Generations(home, SystemClock(), lambda event: None, KEEP_TWO).keep(paths, reason="test")
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli.main", "app", "generic", "--once", "--run", "run",
         "--tier", "./far 1 MB/s", "--file", "big", "--", "sh", "-c", "touch started; exec sleep 100"],
        cwd=tmp_path,
    )  # fmt: skip
    try:
        until(process, tmp_path / "far" / CKPT, "*.incoming")
        until(process, tmp_path, "started")
        # The main thread waits for signals, which looks as if it blocked none.
        others = [one for one in Path(f"/proc/{process.pid}/task").iterdir() if one.name != str(process.pid)]
        blocked = [re.search(r"SigBlk:\s+(\w+)", (one / "status").read_text()) for one in others]
        assert others
        assert all(mask and int(mask[1], 16) >> (signal.SIGTERM - 1) & 1 for mask in blocked)
    finally:
        process.kill()
        process.wait(30)


def test_killed_while_copying_and_without_its_folder_the_program_still_goes_on(tmp_path: Path) -> None:
    first = app(tmp_path, "./far 4 MB/s")
    until(first, tmp_path / "far" / CKPT, "*/file-0000")
    first.kill()
    first.wait(30)
    assert names(tmp_path / "far") == [], "a copy that is not complete must not count"
    [newest] = names(tmp_path / "run")

    # The next one finishes the copy, and the work.
    assert app(tmp_path, "./far").wait(60) == 0
    [copied] = [event for event in read_events(tmp_path / "run") if isinstance(event, Flushed)][:1]
    assert copied.name == newest
    assert (tmp_path / "result").read_text().strip() == str(BIG + 100)

    # The machine's disk is gone, and so are the program's own files.
    for name in names(tmp_path / "far"):
        if name != newest:
            shutil.rmtree(tmp_path / "far" / CKPT / name)
    shutil.rmtree(tmp_path / "run")
    for file in ("small", "big", "result"):
        (tmp_path / file).unlink()
    assert app(tmp_path, "./far").wait(60) == 0
    assert (tmp_path / "result").read_text().strip() == str(BIG + 100)
    restored = [event.name for event in read_events(tmp_path / "run") if isinstance(event, Restored)]
    assert restored == [newest]
    far = CheckpointStore(tmp_path / "far")
    assert all(verify(far, found).is_whole for found in committed(far))
