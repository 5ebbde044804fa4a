"""`run.output` and `run.restored_output`: files of others, kept like checkpoints."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import holdfast
from holdfast.checkpoints.find import committed
from holdfast.checkpoints.verify import verify
from holdfast.cli.main import main
from holdfast.engine import outputs_restore
from holdfast.engine.outputs_block import Output
from holdfast.errors import IncompatibleState, NoValidCheckpoint, SaveError, SetupError, StoreFull
from holdfast.events import CheckpointRejected, OutputCommitted, SaveCommitted
from holdfast.stores.journal import read_events
from holdfast.stores.store import CheckpointStore


def a_run(folder: Path) -> holdfast.Run:
    return holdfast.Run(folder, every="1000 steps", wait_limit=30.0, model=torch.nn.Linear(2, 2))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[holdfast.Run]:
    with a_run(tmp_path / "run") as opened:
        yield opened


def kept(run: holdfast.Run, name: str = "x") -> list[int]:
    return [one.step for one in committed(CheckpointStore(Path(run.path, "outputs", name)))]


def put(run: holdfast.Run, step: int, text: str, name: str = "x") -> None:
    with run.output(name, step=step) as out:
        out.path("text").write_text(text)


def keep(run: holdfast.Run, *acts: Callable[[Output], object]) -> None:
    with run.output("x") as out:
        for act in acts:
            act(out)


def damage(run: holdfast.Run, step: int, name: str = "x") -> None:
    (file,) = Path(run.path, "outputs", name, "ckpt").glob(f"*-s{step:012d}-*/file-00000.out")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def scratch_folders(run: holdfast.Run) -> list[str]:
    return os.listdir(Path(run.path, "outputs", ".scratch"))


# ---- round trips


def test_files_of_any_kind_come_back_byte_for_byte_in_the_next_process(tmp_path: Path) -> None:
    weights = torch.arange(10.0)
    big = np.random.default_rng(3).integers(0, 255, 17 << 20, dtype=np.uint8)  # more than one chunk
    with a_run(tmp_path / "run") as run, run.output("mine") as out:
        torch.save(weights, out.path("x.pt"))
        np.save(out.path("deep/er/big.npy"), big)
        out.path("empty").touch()
        (out.folder / "never asked for.txt").write_text("ü")
        script = out.path("deep/run.sh")
        script.write_text("true")
        script.chmod(0o755)
        os.utime(script, ns=(1_600_000_000_123_456_789,) * 2)
    assert out.committed
    with a_run(tmp_path / "run") as run:
        back = run.restored_output("mine")
        assert back is not None
        assert sorted(p.relative_to(back).as_posix() for p in back.rglob("*") if p.is_file()) == [
            "deep/er/big.npy", "deep/run.sh", "empty", "never asked for.txt", "x.pt",
        ]  # fmt: skip
        assert torch.equal(torch.load(back / "x.pt"), weights)
        assert np.array_equal(np.load(back / "deep/er/big.npy"), big)
        assert (back / "never asked for.txt").read_text() == "ü"
        found = (back / "deep/run.sh").stat()
        assert (found.st_mode & 0o777, found.st_mtime_ns) == (0o555, 1_600_000_000_123_456_789)
    assert not back.exists(), "copies live as long as the run"


def test_an_output_is_no_checkpoint_of_the_training(tmp_path: Path) -> None:
    with a_run(tmp_path / "run") as run:
        put(run, 900, "x")
        assert not committed(CheckpointStore(run.path))
    events = read_events(run.path)
    assert [(e.output, e.step, e.bytes) for e in events if isinstance(e, OutputCommitted)] == [("x", 900, 1)]
    assert [e.step for e in events if isinstance(e, SaveCommitted)] == [0]
    with a_run(tmp_path / "run") as run:
        assert run.step == 0


def test_without_a_step_in_between_the_later_output_is_the_newer(run: holdfast.Run) -> None:
    for text in ("one", "two", "three"):
        put(run, 0, text)
    back = run.restored_output("x")
    assert back is not None
    assert (back / "text").read_text() == "three"


def test_an_output_without_any_file_comes_back_as_an_empty_folder(run: holdfast.Run) -> None:
    with run.output("nothing"):
        pass
    back = run.restored_output("nothing")
    assert back is not None
    assert list(back.iterdir()) == []


def test_what_was_never_kept_is_none(run: holdfast.Run) -> None:
    assert run.restored_output("x") is None
    put(run, 3, "three")
    assert run.restored_output("x", step=4) is None
    assert run.restored_output("y") is None


def test_a_step_can_be_asked_for(run: holdfast.Run) -> None:
    put(run, 3, "three")
    put(run, 4, "four")
    back = run.restored_output("x", step=3)
    assert back is not None
    assert (back / "text").read_text() == "three"


def test_writing_into_what_was_restored_changes_nothing_that_is_kept(run: holdfast.Run) -> None:
    put(run, 1, "whole")
    back = run.restored_output("x")
    assert back is not None
    os.chmod(back / "text", 0o600)
    (back / "text").write_text("spoilt")
    again = run.restored_output("x")
    assert again is not None
    assert (again / "text").read_text() == "whole"


def test_files_can_be_written_on_another_disk(run: holdfast.Run, tmp_path: Path) -> None:
    with run.output("x", scratch=tmp_path / "nvme") as out:
        assert out.path("a").is_relative_to(tmp_path / "nvme")
        assert out.folder.stat().st_mode & 0o077 == 0
        out.path("a").write_text("a")
    assert os.listdir(tmp_path / "nvme") == []
    assert kept(run) == [0]


# ---- retention


def test_two_generations_stay_unless_more_are_asked_for(tmp_path: Path) -> None:
    with a_run(tmp_path / "run") as run:
        for step in range(5):
            put(run, step, "x")
            with run.output("more", step=step, keep=4):
                pass
    assert kept(run) == [4, 3]
    assert kept(run, "more") == [4, 3, 2, 1]


def test_nothing_is_pruned_while_the_newest_is_damaged(tmp_path: Path) -> None:
    with a_run(tmp_path / "run") as run:
        put(run, 1, "good")
        put(run, 2, "soon damaged")
    damage(run, 2)
    with a_run(tmp_path / "run") as run:
        put(run, 3, "new")
    assert kept(run) == [3, 2, 1]


def test_the_command_line_knows_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with a_run(tmp_path / "run") as run:
        put(run, 7, "seven")
    place = str(tmp_path / "run/outputs/x")
    assert main(["verify", place]) == 0
    assert main(["list", place]) == 0
    assert "7" in capsys.readouterr().out
    assert main(["show", place]) == 0
    assert "file-00000.out" in capsys.readouterr().out
    damage(run, 7)
    assert main(["verify", "--deep", place]) != 0


# ---- damage


def test_a_damaged_output_means_the_older_one_said_loudly(
    run: holdfast.Run, caplog: pytest.LogCaptureFixture
) -> None:
    put(run, 1, "older")
    put(run, 2, "newer")
    damage(run, 2)
    with caplog.at_level(logging.WARNING):
        back = run.restored_output("x")
    assert back is not None
    assert (back / "text").read_text() == "older"
    assert len(list(back.iterdir())) == 1
    assert "step 2 is passed over" in caplog.text
    assert "do not match their digest" in caplog.text


def test_the_journal_says_what_was_passed_over(tmp_path: Path) -> None:
    with a_run(tmp_path / "run") as run:
        put(run, 1, "older")
        put(run, 2, "newer")
        damage(run, 2)
        run.restored_output("x")
    (event,) = [e for e in read_events(run.path) if isinstance(e, CheckpointRejected)]
    assert event.name.startswith("outputs/x/e00000001-s000000000002-")


def test_if_all_are_damaged_that_is_an_error_and_not_a_fresh_start(run: holdfast.Run) -> None:
    for step in (1, 2):
        put(run, step, "x")
        damage(run, step)
    with pytest.raises(NoValidCheckpoint, match="none is whole"):
        run.restored_output("x")
    assert scratch_folders(run) == []


def test_a_full_disk_for_the_copies_is_not_the_outputs_fault(
    run: holdfast.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(run, 1, "older")
    put(run, 2, "newer")

    def full(target: int, data: memoryview) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(outputs_restore, "_write_all", full)
    with pytest.raises(holdfast.RestoreError, match=r"cannot copy the output x.*No space left"):
        run.restored_output("x")
    assert scratch_folders(run) == []


def test_a_rank_that_wrote_nothing_of_it_must_be_named(run: holdfast.Run) -> None:
    put(run, 1, "x")
    assert run.restored_output("x", rank=0) is not None
    with pytest.raises(IncompatibleState, match=r"the files of 1 rank.*rank=0 to rank=0"):
        run.restored_output("x", rank=1)


# ---- all or nothing


def test_an_exception_in_the_block_is_the_callers_and_nothing_is_kept(run: holdfast.Run) -> None:
    def fail(out: Output) -> None:
        out.path("a").write_text("a")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        keep(run, fail)
    assert (kept(run), scratch_folders(run)) == ([], [])
    put(run, 1, "the next one is fine")
    assert kept(run) == [1]


def test_what_is_said_to_be_invalid_is_not_kept(run: holdfast.Run) -> None:
    with pytest.raises(SaveError, match="the loss is nan"):
        keep(run, lambda out: out.path("a").write_text("a"), lambda out: out.invalid("the loss is nan"))
    assert (kept(run), scratch_folders(run)) == ([], [])


def test_a_promised_file_that_was_not_written_is_an_error(run: holdfast.Run) -> None:
    with pytest.raises(SaveError, match=r"nothing was written to 'sub/b'"):
        keep(run, lambda out: out.path("a").write_text("a"), lambda out: out.path("sub/b"))
    assert (kept(run), scratch_folders(run)) == ([], [])


def test_a_file_that_is_still_open_for_writing_is_an_error(run: holdfast.Run) -> None:
    files = []
    with pytest.raises(SaveError, match="'log' is still open for writing"):
        keep(run, lambda out: files.append(out.path("log").open("w")), lambda _: files[0].write("buffered"))
    files[0].close()
    with run.output("x") as out:
        out.path("log").write_text("closed")
        reading = out.path("log").open()
    reading.close()
    assert kept(run) == [0]


@pytest.mark.parametrize("what", ["file", "folder", "pipe"])
def test_what_is_not_a_plain_file_is_refused(run: holdfast.Run, what: str, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("secret")
    target = tmp_path / ("secret" if what == "folder" else "secret/key")
    with pytest.raises(SaveError, match="'odd' is not a plain file"):
        keep(
            run,
            lambda out: (
                os.mkfifo(out.folder / "odd") if what == "pipe" else os.symlink(target, out.folder / "odd")
            ),
        )
    assert (kept(run), scratch_folders(run)) == ([], [])
    assert (tmp_path / "secret/key").exists()


def test_a_disk_that_fills_up_is_said_and_the_older_output_stays(
    run: holdfast.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(run, 1, "older")
    begin = CheckpointStore.begin

    def full(store: CheckpointStore, name: str, need_bytes: int) -> None:
        begin(store, name, need_bytes + (1 << 60))

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "begin", full)
        with pytest.raises(StoreFull):
            put(run, 2, "newer")
    assert (kept(run), scratch_folders(run)) == ([1], [])
    put(run, 3, "space again")
    assert kept(run) == [3, 1]


def test_a_file_that_changes_while_it_is_copied_is_not_kept(
    run: holdfast.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CheckpointStore.write

    def meddled(store: CheckpointStore, name: str, source: object) -> object:
        Path(source._path).write_text("changed")  # type: ignore[attr-defined]
        return write(store, name, source)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointStore, "write", meddled)
    with pytest.raises(SaveError, match="changed behind the end of its with block"):
        put(run, 1, "as it was")
    assert kept(run) == []


# ---- killed


def killed_while_writing(folder: Path) -> None:
    """A process of its own that dies in the middle of its second output."""
    child = os.fork()
    if child == 0:
        with a_run(folder) as run:
            put(run, 1, "whole")
            with run.output("x", step=2) as out:
                out.path("text").write_text("half")
                os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_killed_process_leaves_the_older_output_and_no_scratch_behind(tmp_path: Path) -> None:
    killed_while_writing(tmp_path / "run")
    with a_run(tmp_path / "run") as run:
        assert len(scratch_folders(run)) == 1
        back = run.restored_output("x")
        assert back is not None
        assert (back / "text").read_text() == "whole"
        assert scratch_folders(run) == [back.name], "what the dead process left was swept"
    store = CheckpointStore(Path(run.path, "outputs/x"))
    assert all(verify(store, one).is_whole for one in committed(store))


# ---- wrong calls


@pytest.mark.parametrize("name", ["", ".scratch", "a/b", "../x", "x" * 65, "ü", "x\n", 3])
def test_a_name_that_could_leave_its_folder_is_refused(run: holdfast.Run, name: str) -> None:
    with pytest.raises(SetupError, match="cannot name an output"):
        run.output(name)
    with pytest.raises(SetupError, match="cannot name an output"):
        run.restored_output(name)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_a_path_outside_the_output_is_refused(run: holdfast.Run, path: str) -> None:
    with run.output("x") as out:
        with pytest.raises(SetupError, match="does not name a file inside"):
            out.path(path)


def test_an_output_is_used_in_one_with_block(run: holdfast.Run) -> None:
    out = run.output("x")
    with pytest.raises(SetupError, match="is not open"):
        out.path("a")
    with out:
        pass
    with pytest.raises(SetupError, match="written once"), out:
        pass
    with pytest.raises(SetupError, match="not a number of steps"):
        run.output("x", step=-1)


# ---- tiers


def a_run_with(folder: Path, *outer: str) -> holdfast.Run:
    tiers = ["run", *outer]
    return holdfast.Run(folder, every="1000 steps", wait_limit=30.0, tiers=tiers, model=torch.nn.Linear(2, 2))


def test_outputs_go_to_the_lasting_tiers_at_their_rhythm(tmp_path: Path) -> None:
    far, rare = tmp_path / "far", tmp_path / "rare"
    with a_run_with(tmp_path / "run", str(far), f"{rare} every 3") as run:
        for step in range(1, 6):
            put(run, step, f"text {step}")
    # What was still on its way outward when the newest was committed stays until the next one is.
    assert kept(run) in ([5, 4], [5, 4, 3])
    assert next(one.step for one in committed(CheckpointStore(far / "outputs" / "x"))) == 5
    assert [one.step for one in committed(CheckpointStore(rare / "outputs" / "x"))] == [5, 3]
    with a_run_with(tmp_path / "run") as run:
        put(run, 6, "text 6")
    assert kept(run) == [6, 5]


def test_a_damaged_output_is_read_from_the_next_tier(tmp_path: Path) -> None:
    with a_run_with(tmp_path / "run", str(tmp_path / "far")) as run:
        put(run, 1, "old")
        put(run, 2, "new")
    damage(run, 2)
    with a_run_with(tmp_path / "run", str(tmp_path / "far")) as run:
        folder = run.restored_output("x")
        assert folder is not None
        assert (folder / "text").read_text() == "new"


def test_outputs_of_a_lost_run_come_back_from_the_outer_tier(tmp_path: Path) -> None:
    home, far = tmp_path / "run", tmp_path / "far"
    with a_run_with(home, str(far)) as run:
        put(run, 3, "far away")
    shutil.rmtree(home)
    with a_run_with(home, str(far)) as run:
        folder = run.restored_output("x")
        assert folder is not None
        assert (folder / "text").read_text() == "far away"
        put(run, 4, "newer")
    assert [one.step for one in committed(CheckpointStore(far / "outputs" / "x"))] == [4, 3]


def test_a_tier_that_could_not_be_reached_gets_the_next_output(tmp_path: Path) -> None:
    far = tmp_path / "far"
    with a_run_with(tmp_path / "run", str(far)) as run:
        (far / "outputs").write_text("in the way")
        with pytest.raises(holdfast.StoreError):
            put(run, 1, "nowhere")
        (far / "outputs").unlink()
        put(run, 2, "everywhere")
    assert [one.step for one in committed(CheckpointStore(far / "outputs" / "x"))] == [2]
