"""A program under DMTCP is killed and continues. The driver against a stand-in that speaks the same commands;
the same claims against the real commands where they are installed."""

import os
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
from holdfast.cli.main import main
from holdfast.clock import SystemClock
from holdfast.errors import SetupError
from holdfast.events import Restored
from holdfast.policy.build import build_policy
from holdfast.programs.dmtcp import COMMANDS, DmtcpDriver, dmtcp_command, require_dmtcp
from holdfast.programs.generations import Generations
from holdfast.stores.journal import read_events
from holdfast.stores.store import CheckpointStore

HERE = Path(__file__).parent
GOAL = 300
RIGHT = f"{GOAL * (GOAL + 1) // 2}\n"
_MISSING = [command for command in COMMANDS if shutil.which(command) is None]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for command in COMMANDS:
        script = folder / command
        text = (HERE / "standin_dmtcp.py").read_text()
        script.write_text(f"#!{sys.executable}\n{text}")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return folder


def program(tmp_path: Path) -> list[str]:
    script = str(HERE / "counting_program.py")
    return [sys.executable, script, "--goal", str(GOAL), "--result", str(tmp_path / "result")]


class Supervised:
    """`holdfast run --dmtcp` as a process of its own, so that it can be watched and killed."""

    def __init__(self, tmp_path: Path, *options: str) -> None:
        self.run = tmp_path / "run"
        self.output = tmp_path / "output"
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.main", "run", "--dmtcp", "--interval", "0.4 s",
                 "--run", str(self.run), "--pause", "0.1 s", *options, "--", *program(tmp_path)],
                stdout=output, stderr=output, start_new_session=True,
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

    def kill_program(self) -> None:
        for pid in launched(self.run.parent, b"dmtcp_"):
            os.killpg(pid, signal.SIGKILL)

    def ended(self) -> int:
        return self.process.wait(60)


def assert_restored(run: Path) -> None:
    assert any(isinstance(event, Restored) for event in read_events(run)), "it started from nothing"


def launched(folder: Path, name: bytes) -> list[int]:
    """Leaders of sessions that run a program called like this and speak of `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes()
                leader = os.getsid(int(entry.name)) == int(entry.name)
            except OSError:
                continue
            programs = [word.rpartition(b"/")[2] for word in line.split(b"\0")[:2]]
            if leader and os.fsencode(folder) in line and any(one.startswith(name) for one in programs):
                found.append(int(entry.name))
    return found


@pytest.fixture
def supervised(stand_in: Path, tmp_path: Path) -> Iterator[Supervised]:
    job = Supervised(tmp_path)
    yield job
    if job.process.poll() is None:
        os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait(30)


def test_a_killed_program_continues_from_its_newest_image(supervised: Supervised, tmp_path: Path) -> None:
    newest = ""
    for _ in range(2):
        newest = supervised.wait_for_generation(newest)
        supervised.kill_program()
    assert supervised.ended() == 0, supervised.output.read_text()
    assert (tmp_path / "result").read_text() == RIGHT
    assert_restored(supervised.run)
    assert len(supervised.generations()) == 2


def test_a_damaged_newest_image_falls_back_to_the_older(supervised: Supervised, tmp_path: Path) -> None:
    supervised.wait_for_generation()
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.ended() == 75
    newest, older = supervised.generations()
    image = next((supervised.run / "ckpt" / newest).glob("*.dmtcp"))
    data = bytearray(image.read_bytes())
    data[len(data) // 2] ^= 1
    image.write_bytes(data)
    again = Supervised(tmp_path)
    assert again.ended() == 0, again.output.read_text()
    assert (tmp_path / "result").read_text() == RIGHT
    restored = [event.name for event in read_events(again.run) if isinstance(event, Restored)]
    assert restored == [older]


def test_a_stop_signal_saves_and_asks_to_be_run_again(supervised: Supervised, tmp_path: Path) -> None:
    before = supervised.wait_for_generation()
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.ended() == 75, supervised.output.read_text()
    assert supervised.generations()[0] > before
    assert not (tmp_path / "result").exists()
    again = Supervised(tmp_path)
    assert again.ended() == 0
    assert (tmp_path / "result").read_text() == RIGHT


def test_a_finished_program_leaves_no_scratch_and_is_not_started_again(
    supervised: Supervised, tmp_path: Path
) -> None:
    assert supervised.ended() == 0, supervised.output.read_text()
    assert [path.name for path in (supervised.run / "dmtcp").glob("*.dmtcp*")] == []
    (tmp_path / "result").unlink()
    again = Supervised(tmp_path)
    assert again.ended() == 0
    assert not (tmp_path / "result").exists()


def test_a_warning_to_every_process_of_the_job_does_not_end_the_program_before_it_is_saved(
    supervised: Supervised, tmp_path: Path
) -> None:
    """As Slurm sends it with proctrack/linuxproc: to the supervisor, and to the program itself."""
    before = supervised.wait_for_generation()
    for pid in launched(tmp_path, b"dmtcp_"):
        os.killpg(pid, signal.SIGUSR1)
    supervised.process.send_signal(signal.SIGUSR1)
    assert supervised.ended() == 75, supervised.output.read_text()
    assert supervised.generations()[0] > before, "the last state was not saved"


def test_images_can_be_read_by_their_owner_alone(supervised: Supervised) -> None:
    supervised.wait_for_generation()
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.ended() == 75
    run = supervised.run
    assert run.stat().st_mode & 0o777 == 0o700
    for path in (run / "ckpt").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert (run / "dmtcp").stat().st_mode & 0o077 == 0
    assert (run.parent / "output").stat().st_mode & 0o077 != 0, (
        "the mask of this test hides what it looks for"
    )


def test_what_the_only_save_cost_is_known_to_the_next_attempt(stand_in: Path, tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "run") as store:
        store.claim()
        generations = Generations(store, SystemClock(), lambda event: None, Retention(latest=2))
        before, after = (build_policy(every="1 h") for _ in range(2))
        scratch = tmp_path / "run" / "dmtcp"
        first = DmtcpDriver(["true"], generations, scratch, before, SystemClock(), lambda event: None)
        first.start(None)
        assert after.explanation().persist_seconds is None
        (scratch / "ckpt_a_1.dmtcp").write_bytes(b"image")
        first._order = lambda what, seconds: None  # type: ignore[method-assign]
        first.checkpoint("the only one")
        second = DmtcpDriver(["true"], generations, scratch, after, SystemClock(), lambda event: None)
        second.start(None)
        assert after.explanation().persist_seconds is not None


def test_missing_commands_are_an_error_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"not on PATH.*module load dmtcp.*holdfast app"):
        require_dmtcp()
    assert main(["run", "--dmtcp", "--run", str(tmp_path / "run"), "--", "ls"]) == 1
    assert "dmtcp_launch" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_command_of_an_attempt_carries_the_settings(stand_in: Path) -> None:
    command = dmtcp_command(["./a", "--flag"], run="runs/a", interval="10 min")
    assert command[-3:] == ["--", "./a", "--flag"]
    assert command[command.index("--interval") + 1] == "10 min"


@pytest.mark.skipif(bool(_MISSING), reason=f"DMTCP is not installed: no {', '.join(_MISSING)} on PATH")
def test_real_dmtcp_continues_a_killed_python_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = Supervised(tmp_path)
    job.wait_for_generation()
    for pid in launched(tmp_path, b"counting_program"):
        os.killpg(pid, signal.SIGKILL)
    assert job.ended() == 0, job.output.read_text()
    assert (tmp_path / "result").read_text() == RIGHT
    assert_restored(job.run)


@pytest.mark.skipif(bool(_MISSING), reason=f"DMTCP is not installed: no {', '.join(_MISSING)} on PATH")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_real_dmtcp_continues_a_killed_c_program(tmp_path: Path) -> None:
    source = tmp_path / "count.c"
    source.write_text(
        "#include <stdio.h>\n#include <unistd.h>\n"
        "int main(void){long t=0;for(int i=1;i<=300;i++){t+=i;usleep(10000);}\n"
        'FILE*f=fopen("result","w");fprintf(f,"%ld\\n",t);return fclose(f);}\n'
    )
    subprocess.run(["cc", "-o", str(tmp_path / "count"), str(source)], check=True, timeout=60)
    job = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli.main", "run", "--dmtcp", "--interval", "0.4 s",
         "--run", "run", "--", str(tmp_path / "count")], cwd=tmp_path,
    )  # fmt: skip
    end = time.monotonic() + 30
    while not committed(CheckpointStore(tmp_path / "run")):
        assert time.monotonic() < end
        time.sleep(0.1)
    for pid in launched(tmp_path, b"count"):
        os.killpg(pid, signal.SIGKILL)
    assert job.wait(60) == 0
    assert (tmp_path / "result").read_text() == RIGHT
    assert_restored(tmp_path / "run")
