"""A real program with a checkpoint file of its own, killed, stopped and damaged, under `holdfast app`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.events import Event, Restored, RunEnded, SaveCommitted
from holdfast.jobs.halt import HaltNote, clear_halt, write_halt
from holdfast.programs.generations import SET_ASIDE
from holdfast.programs.recipe_driver import suspects
from holdfast.stores.journal import read_events
from holdfast.stores.place import CKPT
from holdfast.stores.store import CheckpointStore

PROGRAM = Path(__file__).parent / "counting_program.py"
GOAL = 400
RIGHT = f"{GOAL * (GOAL + 1) // 2}\n"


class App:
    """`holdfast app generic` around the counting program, as a process of its own."""

    def __init__(self, folder: Path, *options: str, pace: float = 0.01) -> None:
        self.folder, self.run = folder, folder / "run"
        self.output = folder / "output"
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.main", "app", "generic", "--once", "--run", "run",
                 "--file", "state", "--restart=--resume", "--complete-file", "result", "--replaces-files",
                 *options, "--", sys.executable, str(PROGRAM), "--goal", str(GOAL), "--state", "state",
                 "--result", "result", "--pace", str(pace)],
                cwd=folder, stdout=output, stderr=output,
            )  # fmt: skip

    def generations(self) -> list[str]:
        return [str(found.name) for found in committed(CheckpointStore(self.run))]

    def wait_for_generation(self, after: str = "") -> str:
        end = time.monotonic() + 60
        while not (found := self.generations()) or found[0] <= after:
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < end, self.output.read_text()
            time.sleep(0.05)
        return found[0]

    def program(self) -> int:
        """The pid of the program itself."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def ended(self) -> int:
        return self.process.wait(60)

    def restored(self) -> list[str]:
        return [event.name for event in read_events(self.run) if isinstance(event, Restored)]


def test_a_killed_program_continues_and_ends_with_the_right_result(tmp_path: Path) -> None:
    app = App(tmp_path)
    app.wait_for_generation()
    os.kill(app.program(), signal.SIGKILL)
    assert app.ended() == 137
    again = App(tmp_path)
    assert again.ended() == 0, again.output.read_text()
    assert (tmp_path / "result").read_text() == RIGHT
    assert again.restored() == [again.restored()[0]]


def test_a_damaged_newest_generation_and_file_fall_back_to_the_older(tmp_path: Path) -> None:
    app = App(tmp_path)
    app.wait_for_generation(app.wait_for_generation())
    os.kill(app.program(), signal.SIGKILL)
    app.ended()
    newest, older = app.generations()
    stored = tmp_path / "run" / CKPT / newest / "file-0000"
    for damaged in (stored, tmp_path / "state"):
        # As a disk damages it: other bytes, the same time.
        times = damaged.stat()
        damaged.write_bytes(b"#" + damaged.read_bytes()[1:])
        os.utime(damaged, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = App(tmp_path)
    assert again.ended() == 0, again.output.read_text()
    assert again.restored() == [older]
    assert (tmp_path / "result").read_text() == RIGHT
    assert (tmp_path / SET_ASIDE / "1" / "state").exists()
    # Both are named where people look.
    assert f"passed over {newest}" in again.output.read_text()
    assert f"going on from {older}" in again.output.read_text()


def test_a_damaged_stored_copy_is_made_good_from_the_whole_file_in_place(tmp_path: Path) -> None:
    app = App(tmp_path)
    app.wait_for_generation()
    os.kill(app.program(), signal.SIGKILL)
    app.ended()
    newest = app.generations()[0]
    stored = tmp_path / "run" / CKPT / newest / "file-0000"
    stored.write_bytes(b"#" + stored.read_bytes()[1:])
    again = App(tmp_path)
    assert again.ended() == 0, again.output.read_text()
    assert again.restored() == [newest]
    assert not (tmp_path / SET_ASIDE).exists()
    assert (tmp_path / "result").read_text() == RIGHT


def test_a_checkpoint_the_program_cannot_read_is_given_up_after_two_failures(tmp_path: Path) -> None:
    app = App(tmp_path)
    app.wait_for_generation(app.wait_for_generation())
    os.kill(app.program(), signal.SIGKILL)
    app.ended()
    older = app.generations()[0]
    # Newer and well-formed for holdfast, useless for the program.
    (tmp_path / "state").write_text("nonsense")
    os.utime(tmp_path / "state", (time.time() + 5, time.time() + 5))
    assert App(tmp_path).ended() == 9
    assert App(tmp_path).ended() == 9
    assert App(tmp_path).ended() == 9
    last = App(tmp_path)
    assert last.ended() == 0, last.output.read_text()
    assert last.restored()[-1] == older
    assert (tmp_path / "result").read_text() == RIGHT


def test_a_stop_signal_is_passed_on_and_the_last_state_kept(tmp_path: Path) -> None:
    app = App(tmp_path)
    before = app.wait_for_generation()
    app.process.send_signal(signal.SIGUSR1)
    assert app.ended() == 75, app.output.read_text()
    assert app.generations()[0] >= before
    assert not (tmp_path / "result").exists()
    assert (tmp_path / "state").read_text() == (
        tmp_path / "run" / CKPT / app.generations()[0] / "file-0000"
    ).read_text()


def test_a_warning_to_every_process_of_the_job_is_answered_with_a_stop(tmp_path: Path) -> None:
    """As Slurm sends it with proctrack/linuxproc. The program does not know SIGUSR1 and would die of it."""
    app = App(tmp_path)
    app.wait_for_generation()
    os.kill(app.program(), signal.SIGUSR1)
    app.process.send_signal(signal.SIGUSR1)
    assert app.ended() == 75, app.output.read_text()
    assert "nothing says" not in app.output.read_text()
    ends = [event.how for event in read_events(app.run) if isinstance(event, RunEnded)]
    assert ends == ["stopped"]


def test_a_halted_program_saves_ends_and_does_not_start_again(tmp_path: Path) -> None:
    app = App(tmp_path)
    app.wait_for_generation()
    write_halt(app.run, HaltNote("wrong input", "me", 0.0))
    assert app.ended() == 78, app.output.read_text()
    assert App(tmp_path).ended() == 78
    assert "halted by me: wrong input; `holdfast halt --clear" in app.output.read_text()
    clear_halt(app.run)
    assert App(tmp_path).ended() == 0
    assert (tmp_path / "result").read_text() == RIGHT


def test_a_time_limit_stops_the_program_in_time(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'checkpoint = ["state"]\nrestart = ["--resume"]\ncomplete_files = ["result"]\n'
        "replaces_files = true\nstop_seconds = 56\n"
    )
    command = [sys.executable, str(PROGRAM), "--goal", "100000", "--state", "state", "--result", "result"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "app", "mine.toml", "--once", "--run", "run",
         "--time-limit", "1:00", "--", *command],
        cwd=tmp_path, timeout=55, check=False, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 75, done.stderr
    assert (tmp_path / "state").exists()


def generic(folder: Path, pattern: str, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "app", "generic", "--once", "--run", "run",
         "--file", pattern, *options, "--", "sh", "-c", program],
        cwd=folder, timeout=60, check=False, capture_output=True, text=True,
    )  # fmt: skip


def test_a_folder_is_kept_with_its_tree_and_comes_back(tmp_path: Path) -> None:
    program = "mkdir -p out/deep; echo 1 > out/a; echo 2 > out/deep/b; exit 0"
    assert generic(tmp_path, "out", program, "--complete-file", "result").returncode == 75
    for name in ("out/a", "out/deep/b"):
        (tmp_path / name).unlink()
    (tmp_path / "out" / "torn").write_text("half")
    finishing = "cat out/a out/deep/b > result; ls out > seen"
    assert generic(tmp_path, "out", finishing, "--complete-file", "result").returncode == 0
    assert (tmp_path / "result").read_text() == "1\n2\n"
    assert (tmp_path / "seen").read_text() == "a\ndeep\n", "what does not belong to it is set aside"


def test_a_pattern_that_never_matches_is_an_error_at_the_end(tmp_path: Path) -> None:
    done = generic(tmp_path, "stat", "echo 1 > state")
    assert done.returncode == 78, "running it again cannot help"
    assert "nothing ever matched stat" in done.stderr


def test_a_program_that_removes_its_checkpoint_at_the_end_is_complete(tmp_path: Path) -> None:
    assert generic(tmp_path, "state", "echo 1 > state", "--complete-file", "result").returncode == 75
    assert generic(tmp_path, "state", "rm state; echo > result", "--complete-file", "result").returncode == 0


def test_a_finished_program_is_not_run_again(tmp_path: Path) -> None:
    assert App(tmp_path, pace=0.0).ended() == 0
    (tmp_path / "result").unlink()
    assert App(tmp_path, pace=0.0).ended() == 0
    assert not (tmp_path / "result").exists()


def test_a_program_that_cannot_be_started_ends_like_in_a_shell(tmp_path: Path) -> None:
    for program, code in (("./nowhere", 127), ("./state", 126)):
        (tmp_path / "state").touch(mode=0o644)
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli.main", "app", "--once", "generic", "--", program],
            cwd=tmp_path, timeout=60, check=False, capture_output=True,
        )  # fmt: skip
        assert done.returncode == code


def _story(*words: str) -> list[Event]:
    made: dict[str, Event] = {
        "restored": Restored(time=0, step=1, name="g", seconds=0, bytes=0),
        "failed": RunEnded(time=0, step=1, how="error"),
        "stopped": RunEnded(time=0, step=1, how="stopped"),
        "saved": SaveCommitted(time=0, step=2, name="h", persist_seconds=0, bytes=0, reason=""),
    }
    return [made[word] for word in words]


@pytest.mark.parametrize(
    ("story", "is_suspect"),
    [
        ("restored failed", False),
        ("restored failed restored failed", True),
        ("restored failed restored stopped", False),
        ("restored saved failed restored failed", False),
        ("restored failed restored failed saved", False),
        ("restored restored restored", False),
    ],
)
def test_only_repeated_failures_of_the_program_itself_make_a_suspect(story: str, is_suspect: bool) -> None:
    assert suspects(_story(*story.split())) == ({"g"} if is_suspect else set())
