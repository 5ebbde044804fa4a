"""No generation is half a checkpoint: programs that pause while they write, or write one file after another,
are killed again and again, and end with the right result."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Retention
from holdfast.clock import SystemClock
from holdfast.events import Event, RunStarted
from holdfast.programs.candidate import FOLDER
from holdfast.programs.generations import SET_ASIDE, Generations
from holdfast.programs.recipe import parse_recipe, prepare
from holdfast.programs.recipe_driver import RecipeDriver
from holdfast.stores.place import CKPT
from holdfast.stores.store import CheckpointStore

WRITER = Path(__file__).parent / "careless_writers.py"
GOAL = 8
PAUSE = 0.04
RIGHT = f"{GOAL * (GOAL + 1) // 2}\n"
KILLS = 70 if os.environ.get("HOLDFAST_TORTURE") else 3
# How the checkpoint is written, and what the user says about it.
WAYS = {
    "in-place": "",
    "two": "",
    "two, and which is the last": 'written_last = "state.second"',
    "append": "",
    "append, with its length checked": f'check = ["{sys.executable}", "-c", "{{length}}"]',
    "append-closed": "",
}
CHECK_LENGTH = "import os,sys; sys.exit(os.stat('state').st_size % 24)"


class Killed:
    """A program under a recipe, with looks in quick succession instead of once a second."""

    def __init__(
        self, folder: Path, way: str, said: str = "", goal: int = GOAL, pause: float = PAUSE
    ) -> None:
        self.work, self.store = folder / "work", CheckpointStore(folder / "run")
        self.work.mkdir()
        self.store.claim()
        self.events: list[Event] = []
        writer = way.partition(",")[0]
        text = 'checkpoint = ["state*"]\nrestart = ["--resume"]\ncomplete_files = ["result"]\n'
        self.recipe = parse_recipe(text + said.replace("{length}", CHECK_LENGTH), "mine")
        command = [sys.executable, "-S", "-E", str(WRITER), writer, str(goal), str(pause)]
        self.prepared = prepare(self.recipe, command)

    def attempt(self, kill_after: float | None, once: Callable[[], bool] = lambda: True) -> int:
        """Killed `kill_after` seconds after its first file is there and `once` is true."""
        generations = Generations(self.store, SystemClock(), self.events.append, Retention(latest=2))
        driver = RecipeDriver(
            self.recipe, self.prepared, generations, self.work, SystemClock(), self.events.append,
            list(self.events),
        )  # fmt: skip
        command = driver.start(None)
        self.events.append(RunStarted(time=0, step=0, host="", pid=0, writer_epoch=1))
        program = subprocess.Popen(command, cwd=self.work)
        end: float | None = None
        while program.poll() is None:
            if end is None and kill_after is not None and any(self.work.glob("state*")) and once():
                # From its first file on: how long a busy machine takes to start it is not the point.
                end = time.monotonic() + kill_after
            if end is not None and time.monotonic() >= end:
                program.send_signal(signal.SIGKILL)
                program.wait()
                break
            driver.look()
            time.sleep(0.01)
        assert isinstance(program.returncode, int)
        driver.ended(program.returncode, stopping=False)
        return program.returncode


@pytest.fixture
def killed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Killed]:
    way = request.param
    job = Killed(tmp_path, way, WAYS.get(way, ""))
    yield job
    job.store.release()


@pytest.mark.parametrize("killed", list(WAYS), indirect=True)
def test_a_careless_writer_that_is_killed_ends_with_the_right_result(killed: Killed) -> None:
    chance = random.Random(5)
    kills = 0
    while kills < KILLS:
        ended = killed.attempt(chance.uniform(0.1, 0.9))
        assert ended in (0, -signal.SIGKILL), "it could not go on from what it was given"
        kills += ended != 0
        if (killed.work / "result").exists():
            assert (killed.work / "result").read_text() == RIGHT
            # Done: another one, from the beginning.
            for path in [*killed.work.glob("state*"), killed.work / "result"]:
                path.unlink(missing_ok=True)
            for name in killed.store.names():
                killed.store.retire(name)
            killed.events.clear()
    assert killed.attempt(None) == 0
    assert (killed.work / "result").read_text() == RIGHT


def stored(killed: Killed) -> list[str]:
    """The contents of every generation that was kept."""
    found = []
    for one in committed(killed.store):
        folder = Path(killed.store.where) / CKPT / str(one.name)
        found.append("".join(path.read_text() for path in sorted(folder.glob("file-*"))))
    return found


@pytest.mark.parametrize("killed", ["in-place", "append-closed"], indirect=True)
def test_a_pause_in_the_middle_is_no_end(killed: Killed) -> None:
    killed.attempt(1.0)
    assert all(len(text) % 24 == 0 for text in stored(killed)), stored(killed)


def test_two_files_without_a_sign_are_only_a_candidate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed = Killed(tmp_path, "two", goal=1000, pause=1.0)
    candidate = Path(killed.store.where) / FOLDER
    killed.attempt(0.0, lambda: {"state", "state.second"} <= {path.name for path in candidate.glob("*")})
    assert stored(killed) == []
    assert sorted(path.name for path in candidate.iterdir()) == ["state", "state.second"]
    assert caplog.text.count("--written-last") == 1, "said once"
    killed.attempt(0.3)
    assert "starting from the beginning" in caplog.text
    set_aside = killed.work / SET_ASIDE / "1"
    assert sorted(path.name for path in set_aside.iterdir()) == ["state", "state.second"]
    killed.store.release()


@pytest.mark.parametrize("killed", ["two, and which is the last"], indirect=True)
def test_the_file_that_is_written_last_makes_two_files_a_generation(killed: Killed) -> None:
    for seconds in (1.0, 3.0, 9.0, 27.0):
        # On a busy machine the program has hardly begun after the first of these.
        killed.attempt(seconds)
        if stored(killed):
            break
    assert stored(killed), "nothing was kept"
    for text in stored(killed):
        count, total = int(text[:8]), int(text[8:])
        assert total == count * (count + 1) // 2


@pytest.mark.parametrize("killed", ["in-place"], indirect=True)
def test_what_is_set_aside_is_not_found_by_the_programs_own_pattern(killed: Killed) -> None:
    while len(stored(killed)) < 2:
        killed.attempt(1.0)
    (killed.work / "state").write_text("half")
    os.utime(killed.work / "state", (time.time() + 5, time.time() + 5))
    killed.attempt(0.3)
    assert (killed.work / SET_ASIDE / "1" / "state").exists() or SET_ASIDE in os.listdir(killed.work)
    assert {path.name for path in killed.work.glob("state*")} == {"state"}


@pytest.mark.parametrize("killed", ["in-place"], indirect=True)
def test_a_file_from_before_the_first_start_is_taken(killed: Killed) -> None:
    count = GOAL - 2
    (killed.work / "state").write_text(f"{count:08d}{count * (count + 1) // 2:016d}")
    assert killed.attempt(None) == 0
    assert (killed.work / "result").read_text() == RIGHT
