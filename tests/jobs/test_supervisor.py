"""The supervisor with real processes. What they do is decided by files, not by sleeping."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.events import AttemptEnded, AttemptStarted, Event, SupervisorEnded
from holdfast.jobs import exit_codes
from holdfast.jobs.attempts import RestartRules
from holdfast.jobs.environment import WallDeadline
from holdfast.jobs.supervisor import Supervisor, SupervisorSettings
from holdfast.jobs.watchdog import HangLimits

QUICK = RestartRules(restarts=10, no_progress=3, first_pause=0.0)
# A program that announces itself, then waits for the end that the test has in mind. Bare for a fast start.
PRELUDE = """
import json, os, signal, sys, time
def beat(n, phase="training", why=""):
    record = dict(count=n, pid=os.getpid(), run=os.environ["RUN"], step=n, phase=phase, why=why,
                  resumed_from=None)
    with open(os.environ["HOLDFAST_HEARTBEAT"], "r+b") as f:
        f.write(json.dumps(record).encode().ljust(8192))
attempt = int(os.environ["HOLDFAST_ATTEMPT"])
"""


class Watched:
    """A supervisor, and what it reported. `on_start` is told the pid of every attempt, in this thread."""

    def __init__(
        self,
        tmp_path: Path,
        script: str,
        settings: SupervisorSettings | None = None,
        on_start: Callable[[int, int], None] | None = None,
        command: list[str] | None = None,
        **more: object,
    ) -> None:
        self.events: list[Event] = []
        self._on_start = on_start
        (tmp_path / "child.py").write_text(PRELUDE + script)
        self.supervisor = Supervisor(
            command or [sys.executable, "-S", "-E", str(tmp_path / "child.py")],
            settings or SupervisorSettings(rules=QUICK),
            report=self._report,
            environ={**os.environ, "RUN": str(tmp_path), "HERE": str(tmp_path)},
            **more,  # type: ignore[arg-type]
        )

    def _report(self, event: Event, folder: str | None) -> None:
        self.events.append(event)
        if isinstance(event, AttemptStarted) and self._on_start is not None:
            self._on_start(event.attempt, event.pid)

    def run(self) -> int:
        return self.supervisor.run()

    @property
    def ends(self) -> list[AttemptEnded]:
        return [event for event in self.events if isinstance(event, AttemptEnded)]

    @property
    def causes(self) -> list[str]:
        return [end.cause for end in self.ends]


def once_it_exists(path: Path, then: Callable[[], None]) -> Callable[[int, int], None]:
    """For `on_start`: do something from another thread as soon as the child has made this file."""

    def watch() -> None:
        pause = threading.Event()
        for _ in range(6000):
            if path.exists():
                then()
                return
            pause.wait(0.01)

    return lambda attempt, pid: threading.Thread(target=watch, daemon=True).start()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_clean_exit_ends_it(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "sys.exit(0)")
    assert watched.run() == exit_codes.FINISHED
    assert watched.causes == ["finished"]


def test_crashes_are_started_again_until_the_work_is_done(tmp_path: Path) -> None:
    checkpoints = iter(range(100))
    watched = Watched(
        tmp_path,
        "beat(1)\n"
        "if attempt == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "if attempt == 1: os.abort()\n"
        "sys.exit([0, 0, 7, 75, 0][attempt])",
        SupervisorSettings(rules=QUICK, run=str(tmp_path)),
        newest_checkpoint=lambda run: str(next(checkpoints)),
    )
    assert watched.run() == 0
    assert watched.causes == ["signal", "signal", "exit code", "stopped", "finished"]
    assert [(end.signal, end.exit_code) for end in watched.ends[:3]] == [(9, None), (6, None), (None, 7)]
    assert [end.planned for end in watched.ends] == [False, False, False, True, True]


def test_a_child_that_dies_at_once_every_time_stops_with_its_cause(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "sys.exit(41)")
    assert watched.run() == exit_codes.NO_PROGRESS
    assert watched.causes == ["exit code"] * 3
    last = watched.events[-1]
    assert isinstance(last, SupervisorEnded)
    assert "3 attempts in a row made no new checkpoint" in last.why
    assert "exit code 41" in last.why


def test_the_budget_of_restarts_ends_what_gets_on_but_never_ends(tmp_path: Path) -> None:
    checkpoints = iter(range(100))
    rules = RestartRules(restarts=4, no_progress=2, first_pause=0.0)
    watched = Watched(
        tmp_path,
        "sys.exit(1)",
        SupervisorSettings(rules=rules, run=str(tmp_path)),
        newest_checkpoint=lambda run: str(next(checkpoints)),
    )
    assert watched.run() == exit_codes.OUT_OF_RESTARTS
    assert len(watched.ends) == 5


@pytest.mark.parametrize("code", [exit_codes.DO_NOT_RESTART, exit_codes.INTERRUPTED])
def test_codes_that_say_no_more_are_obeyed_and_passed_on(tmp_path: Path, code: int) -> None:
    watched = Watched(tmp_path, f"sys.exit({code})")
    assert watched.run() == code
    assert len(watched.ends) == 1


def test_a_command_that_does_not_exist_is_127_and_one_that_cannot_run_126(tmp_path: Path) -> None:
    assert Watched(tmp_path, "", command=[str(tmp_path / "nothing")]).run() == exit_codes.NOT_FOUND
    (tmp_path / "text").write_text("no program")
    assert Watched(tmp_path, "", command=[str(tmp_path / "text")]).run() == exit_codes.CANNOT_EXECUTE


WAITS_FOR_SIGTERM = """
beat(1)
signal.signal(signal.SIGTERM, lambda n, f: sys.exit(75))
signal.signal(signal.SIGUSR1, lambda n, f: open(os.environ["HERE"] + "/usr1", "w").close())
open(os.environ["HERE"] + "/ready", "w").close()
while True: signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_is_passed_on_and_answered_with_75(tmp_path: Path, number: int) -> None:
    # Under nohup a hang-up is ignored, and a supervisor leaves it so: these tests may run under it.
    before = signal.signal(number, signal.SIG_DFL)
    on_start = once_it_exists(tmp_path / "ready", lambda: os.kill(os.getpid(), number))
    watched = Watched(tmp_path, WAITS_FOR_SIGTERM, on_start=on_start)
    try:
        assert watched.run() == exit_codes.PLEASE_RUN_AGAIN
    finally:
        signal.signal(number, before)
    assert watched.causes == ["stopped"]


def test_a_child_that_ignores_the_request_is_killed_after_the_grace(tmp_path: Path) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(os.environ['HERE'] + '/ready', 'w')\n" + (
        "while True: signal.pause()"
    )
    on_start = once_it_exists(tmp_path / "ready", lambda: os.kill(os.getpid(), signal.SIGTERM))
    watched = Watched(tmp_path, script, SupervisorSettings(rules=QUICK, grace=0.0), on_start)
    assert watched.run() == exit_codes.PLEASE_RUN_AGAIN
    assert watched.ends[0].signal == signal.SIGKILL


def test_a_hung_child_is_found_and_started_again(tmp_path: Path) -> None:
    """It gives a sign of life, then ignores everything that can be ignored."""
    script = """
beat(1)
if attempt == 1: sys.exit(0)
signal.signal(signal.SIGTERM, lambda n, f: open(os.environ["HERE"] + "/asked", "w").close())
while True: signal.pause()
"""
    settings = SupervisorSettings(rules=QUICK, hang=HangLimits(silence=0.5))
    watched = Watched(tmp_path, script, settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.jobs.supervisor.HANG_GRACE", 2.0)
        assert watched.run() == 0
    assert watched.causes == ["hang", "finished"]
    assert "after step 1" in watched.ends[0].detail
    assert (tmp_path / "asked").exists(), "it was not asked politely first"


def test_the_time_limit_stops_the_command_and_asks_to_be_run_again(tmp_path: Path) -> None:
    """The child hears of the deadline, and a command that does not care is stopped when it has come."""
    script = WAITS_FOR_SIGTERM.replace(
        "beat(1)",
        "beat(1); open(os.environ['HERE'] + '/deadline', 'w').write(os.environ['HOLDFAST_DEADLINE'])",
    )

    class Clock:
        def monotonic(self) -> float:
            return 0.0

        def wall(self) -> float:
            return 200.0 if (tmp_path / "ready").exists() else 0.0

    settings = SupervisorSettings(rules=QUICK, deadline=WallDeadline(100.0, "test"))
    watched = Watched(tmp_path, script, settings, clock=Clock())
    assert watched.run() == exit_codes.PLEASE_RUN_AGAIN
    assert watched.causes == ["time limit"]
    assert (tmp_path / "deadline").read_text() == "@100.0"


def test_a_notice_of_the_provider_stops_the_command(tmp_path: Path) -> None:
    watched = Watched(
        tmp_path,
        WAITS_FOR_SIGTERM,
        leaving=lambda: "AWS: terminate" if (tmp_path / "ready").exists() else None,
    )
    assert watched.run() == exit_codes.PLEASE_RUN_AGAIN
    assert watched.causes == ["preemption"]


def test_nothing_that_a_crashed_command_started_lives_on(tmp_path: Path) -> None:
    """Also not what left its session, as torchrun's workers do."""
    script = """
import subprocess
other = subprocess.Popen([sys.executable, "-S", "-c", "import signal\\nwhile True: signal.pause()"])
away = subprocess.Popen([sys.executable, "-S", "-c", "import signal\\nwhile True: signal.pause()"],
                        start_new_session=True)
open(os.environ["HERE"] + "/pids", "a").write(f"{other.pid} {away.pid}\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""
    watched = Watched(tmp_path, script, SupervisorSettings(rules=RestartRules(5, 2, 0.0)))
    assert watched.run() == exit_codes.NO_PROGRESS
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 4
    assert all(is_gone(pid) for pid in pids)


def test_a_stopped_shell_does_not_cost_the_training_inside_it_its_save(tmp_path: Path) -> None:
    """A shell dies of SIGTERM and passes nothing on; what it ran still gets its chance."""
    (tmp_path / "inner.py").write_text(
        "import os, signal, sys\n"
        "def save(n, f):\n    open(os.environ['HERE'] + '/saved', 'w').close()\n    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "open(os.environ['HERE'] + '/ready', 'w').close()\n"
        "while True: signal.pause()\n"
    )
    shell = f"{sys.executable} -S {tmp_path}/inner.py; true"
    on_start = once_it_exists(tmp_path / "ready", lambda: os.kill(os.getpid(), signal.SIGTERM))
    watched = Watched(tmp_path, "", on_start=on_start, command=["/bin/sh", "-c", shell])
    assert watched.run() == exit_codes.PLEASE_RUN_AGAIN
    assert (tmp_path / "saved").exists()


def test_a_killed_supervisor_takes_its_command_down_politely(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(
        "import os, signal, sys\n"
        "def save(n, f):\n    open(os.environ['HERE'] + '/saved', 'w').close()\n    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print(os.getpid(), flush=True)\n"
        "while True: signal.pause()\n"
    )
    supervisor = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "holdfast.cli.main",
            "run",
            "--",
            sys.executable,
            "-S",
            str(tmp_path / "inner.py"),
        ],
        env={**os.environ, "HERE": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline().strip().isdecimal()
    supervisor.kill()
    supervisor.wait(60)
    supervisor.stdout.read()  # ends when the command has ended
    supervisor.stdout.close()
    assert (tmp_path / "saved").exists()


def test_the_command_line_writes_events_to_log_and_journal_and_answers_json(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(
        PRELUDE + "beat(1)\nprint('from the child')\nsys.exit([1, 0][attempt])"
    )
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "run", "--json", "--pause", "0", "--log",
         str(tmp_path / "log.jsonl"), "--output", str(tmp_path / "out-{attempt}.txt"), "--",
         sys.executable, "-S", str(tmp_path / "child.py")],
        env={**os.environ, "RUN": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    names = ["AttemptStarted", "AttemptEnded", "AttemptStarted", "AttemptEnded", "SupervisorEnded"]
    assert [event["event"] for event in answer["events"]] == names
    assert answer["run"] == str(tmp_path)
    for file in ("log.jsonl", "events.jsonl"):
        lines = [line for line in (tmp_path / file).read_text().splitlines() if line]
        assert [json.loads(line)["event"] for line in lines] == names
    assert (tmp_path / "out-1.txt").read_text() == "from the child\n"
    assert "attempt 1 ended" in done.stderr
    assert "starting again" in done.stderr
