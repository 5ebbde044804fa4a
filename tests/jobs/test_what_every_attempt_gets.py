"""Every attempt gets the same input, is watched where it really saves, and hears of its end in time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.clock import SystemClock
from holdfast.events import AttemptEnded, Event
from holdfast.jobs.environment import WallDeadline
from holdfast.jobs.standard_input import StandardInput
from holdfast.jobs.supervisor import Supervisor, SupervisorSettings

# Dies in its first attempt, after it has read everything.
READER = (
    'import os,sys; t=sys.stdin.read(); print(len(t)); sys.exit(int(os.environ["HOLDFAST_ATTEMPT"]) == 0)'
)


def supervised(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli.main", "run", "--pause", "0", *arguments]
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, capture_output=True, text=True, timeout=60, check=False, **more
    )


def test_a_second_attempt_reads_the_same_file_from_where_the_first_began(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("head\nthe deck of a program\n")
    with open(tmp_path / "input") as file:
        os.lseek(file.fileno(), 5, os.SEEK_SET)
        done = supervised("--", sys.executable, "-c", READER, stdin=file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["22", "22"]


def test_a_second_attempt_gets_again_what_came_through_a_pipe(tmp_path: Path) -> None:
    done = supervised("--", sys.executable, "-c", READER, input="x" * 300_000)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["300000", "300000"]


def test_a_pipe_that_is_too_long_to_be_remembered_says_so() -> None:
    ours, theirs = os.pipe()
    given = StandardInput(ours, limit=1000)
    assert given.cannot_repeat is None
    os.write(theirs, bytes(5000))
    os.close(theirs)
    read = given.for_attempt()
    assert read is not None
    with os.fdopen(read, "rb") as file:
        assert len(file.read()) == 5000, "the first attempt gets all of it"
    assert "put it into a file" in (given.cannot_repeat or "")
    os.close(ours)


def test_a_command_that_reads_nothing_is_not_held_up_by_an_open_pipe() -> None:
    ours, theirs = os.pipe()
    try:
        done = supervised("--", "true", stdin=ours)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0


BEATS = """
import json, os, sys, time
record = dict(count=1, pid=os.getpid(), run=sys.argv[1], step=0, phase="training", why="", resumed_from=None)
with open(os.environ["HOLDFAST_HEARTBEAT"], "r+b") as file:
    file.write(json.dumps(record).encode().ljust(8192))
time.sleep(100)
"""


def test_a_training_that_uses_another_folder_than_the_one_named_is_an_error_at_once(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = supervised(
        "--run", "runs/train", "--", sys.executable, "-c", BEATS, str(tmp_path / "runs/digits"), cwd=tmp_path
    )
    assert done.returncode == 78, done.stderr
    assert "runs/digits" in done.stderr
    assert "runs/train" in done.stderr
    assert "give the same folder" in done.stderr
    assert time.monotonic() - begun < 50, "it waited for the command to end"


@pytest.mark.parametrize("spelling", ["runs/train", "./runs/../runs/train", "link"])
def test_another_spelling_of_the_same_folder_is_no_contradiction(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "runs" / "train").mkdir(parents=True)
    (tmp_path / "link").symlink_to("runs/train")
    script = BEATS.replace("time.sleep(100)", "time.sleep(1.5); sys.exit(0)")
    done = supervised(
        "--run", spelling, "--", sys.executable, "-c", script, str(tmp_path / "runs/train"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


class NearTheEnd(SystemClock):
    """The first look sees ten minutes, every later one half a minute."""

    def __init__(self) -> None:
        self.end = time.time() + 600
        self._looked = False

    def wall(self) -> float:
        looked, self._looked = self._looked, True
        return self.end - (30 if looked else 600)


@pytest.mark.parametrize("knows_its_end", [False, True])
def test_a_program_without_signs_of_life_is_asked_to_stop_before_its_limit(
    tmp_path: Path, knows_its_end: bool
) -> None:
    """One that gives signs of life knows its end itself."""
    script = BEATS.replace("time.sleep(100)", "time.sleep(2.5); sys.exit(0)") if knows_its_end else SLEEPER
    events: list[Event] = []
    clock = NearTheEnd()
    settings = SupervisorSettings(deadline=WallDeadline(clock.end, "test"))
    command = [sys.executable, "-S", "-E", "-c", script, str(tmp_path)]
    code = Supervisor(command, settings, report=lambda event, folder: events.append(event), clock=clock).run()
    [ended] = [event for event in events if isinstance(event, AttemptEnded)]
    assert (code, ended.cause) == ((0, "finished") if knows_its_end else (75, "time limit"))


LOADING = """
import holdfast, os, signal, sys, time
from pathlib import Path
Path("loading").touch()
while not Path("go").exists(): time.sleep(0.02)
from holdfast.engine.stop_signals import StopSignals
signals = StopSignals()
signals.install()
Path("open").touch()
while signals.reason is None: time.sleep(0.02)
Path("heard").write_text(signals.reason)
sys.exit(75)
"""


def test_a_training_that_still_loads_does_not_die_of_a_warning_and_hears_the_next(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADING)
    job = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli.main", "run", "--", sys.executable, "train.py"], cwd=tmp_path,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(tmp_path / "loading")
        [training] = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(training), signal.SIGUSR1)  # as Slurm does with proctrack/linuxproc
        (tmp_path / "go").touch()
        until(tmp_path / "open")
        job.send_signal(signal.SIGUSR1)
        assert job.wait(60) == 75
        assert (tmp_path / "heard").read_text() == "SIGUSR1"
    finally:
        job.kill()
        job.wait(30)
        assert job.stderr is not None
        job.stderr.close()


def test_a_program_that_does_not_listen_to_the_warning_is_asked_in_the_usual_way(tmp_path: Path) -> None:
    program = (
        "import pathlib,signal,sys,time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('saved').touch(), sys.exit(75)))\n"
        "pathlib.Path('ready').touch()\nwhile True: time.sleep(0.05)\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli.main", "run", "--", sys.executable, "-c", program], cwd=tmp_path
    )
    try:
        until(tmp_path / "ready")
        job.send_signal(signal.SIGUSR1)
        assert job.wait(60) == 75
        assert (tmp_path / "saved").exists()
    finally:
        job.kill()
        job.wait(30)


def until(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.02)


SLEEPER = "import time; time.sleep(100)"


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("import nowhere_to_be_found", [], "nowhere_to_be_found"),
        ("from nowhere_to_be_found.deep import x", [], "nowhere_to_be_found"),
        ("import argparse; argparse.ArgumentParser().parse_args()", ["--wrong"], "wrong arguments"),
        ("if True print(1)", [], "is no Python"),
        (None, [], "there is no script"),
    ],
)
def test_an_error_that_would_only_repeat_is_tried_once(
    tmp_path: Path, text: str | None, arguments: list[str], says: str
) -> None:
    if text is not None:
        (tmp_path / "train.py").write_text(text)
    done = supervised("--", sys.executable, "train.py", *arguments, cwd=tmp_path)
    assert done.returncode == 78, done.stderr
    assert done.stderr.count("started (pid") == 1
    assert says in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "text",
    [
        "import beside, sys; sys.exit(1)",
        "try:\n    import nowhere\nexcept ImportError:\n    pass\nraise SystemExit(1)",
    ],
)
def test_an_error_that_may_go_away_is_tried_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "beside.py").touch()
    (tmp_path / "train.py").write_text(text)
    done = supervised("--", sys.executable, "train.py", cwd=tmp_path)
    assert done.returncode == 93
    assert done.stderr.count("started (pid") == 3


def test_an_attempt_has_one_number_in_messages_and_file_names(tmp_path: Path) -> None:
    done = supervised("--output", "log-{attempt}", "--", "sh", "-c", "echo hello; exit 3", cwd=tmp_path)
    assert "attempt 3 started" in done.stderr
    assert sorted(path.name for path in tmp_path.glob("log-*")) == ["log-1", "log-2", "log-3"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "--no-progress", "-1", "--", "true"],
        ["run", "--time-limit", "soon", "--", "true"],
        ["run", "--deadline", "later", "--", "true"],
        ["run", "--wrong", "--", "true"],
        ["app"],
        ["app", "generic"],
        ["app", "no-such-recipe", "--", "true"],
        ["slurm"],
        ["slurm", "train.py"],
    ],
)
def test_a_call_that_cannot_be_read_ends_with_2(arguments: list[str]) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as ended:  # argparse's own
        code = ended.code
    assert code == 2
