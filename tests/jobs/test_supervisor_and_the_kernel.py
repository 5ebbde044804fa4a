"""What the kernel may do to a supervisor: give its signals to another thread, show it many processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.cli.running.run_history import newest_checkpoint
from holdfast.jobs import exit_codes, supervisor_child


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


SUPERVISOR = """
import os, signal, sys, threading
from holdfast.events import AttemptStarted
from holdfast.jobs.supervisor import Supervisor, SupervisorSettings

# As one that asks a provider for notices: it does not block what the supervisor waits for.
threading.Thread(target=threading.Event().wait, daemon=True).start()

def report(event, folder):
    if isinstance(event, AttemptStarted):
        # While the supervisor is busy and does not wait, the kernel gives it to the other thread.
        os.kill(os.getpid(), signal.SIGTERM)

command = [sys.executable, "-S", "-c", "import signal\\nwhile True: signal.pause()"]
sys.exit(Supervisor(command, SupervisorSettings(), report=report).run())
"""


def test_a_signal_that_another_thread_catches_is_passed_on() -> None:
    """Its default would end the supervisor, and leave the command without one."""
    done = subprocess.run([sys.executable, "-c", SUPERVISOR], timeout=120, check=False)
    assert done.returncode == exit_codes.PLEASE_RUN_AGAIN


def test_orphans_are_reaped_without_a_walk_through_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "pid"
    # Dead, and nobody has asked how it ended: it stands in front of the orphan.
    other = subprocess.Popen(["true"])
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    script = f"(sh -c 'echo $$ > {said}.part; mv {said}.part {said}' &); exec sleep 600"
    child = supervisor_child.Child(["sh", "-c", script], dict(os.environ))

    def is_reaped() -> bool:
        child.reap_orphans()
        try:
            os.kill(int(said.read_text()), 0)
        except ProcessLookupError:
            return True
        return False

    try:
        wait_until(said.exists)
        with monkeypatch.context() as patch:
            patch.setattr(supervisor_child, "_processes", lambda: pytest.fail("it reads all of /proc"))
            wait_until(is_reaped)
        assert child.returncode() is None
    finally:
        child.kill()
        wait_until(lambda: child.returncode() is not None)
    assert other.wait() == 0, "how it ended is still there to be asked"


def test_a_checkpoint_in_a_nearer_tier_is_progress(tmp_path: Path) -> None:
    """The run's own folder gets one of ten: a supervisor that looked there alone would give up."""
    run_folder, near = tmp_path / "run", tmp_path / "near"
    model = torch.nn.Linear(2, 2)
    seen = []
    with holdfast.Run(run_folder, tiers=[f"{near}", "single", "run every 10"], model=model) as run:
        for _ in range(3):
            run.end_step()
            name = run.save_now().wait()
            seen.append(newest_checkpoint(str(run_folder)))
            assert seen[-1] == name
    assert len(set(seen)) == 3
