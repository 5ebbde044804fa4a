"""`holdfast run` over a training that is killed fifty times, compared bit for bit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_training import train
from warm_python import EPOCHS, KILLS

from holdfast.cli.running.run_history import newest_checkpoint
from holdfast.events import AttemptEnded, Event
from holdfast.jobs.attempts import RestartRules
from holdfast.jobs.supervisor import Supervisor, SupervisorSettings
from holdfast.policy.failures import FailureHistory
from holdfast.stores.journal import Journal, read_events

WARM = Path(__file__).parent / "warm_python.py"


@pytest.fixture
def warm_python(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "socket")
    server = subprocess.Popen([sys.executable, str(WARM), path], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    yield path
    server.kill()
    server.wait(60)
    server.stdout.close()


def test_fifty_kills_change_no_bit(tmp_path: Path, warm_python: str) -> None:
    folder = tmp_path / "run"

    def report(event: Event, run: str | None) -> None:
        if run is not None:
            Journal(run).append(event)

    code = Supervisor(
        [sys.executable, "-S", "-E", str(WARM), warm_python, str(folder)],
        # Some die before their first checkpoint, which is the point; so only the budget ends it.
        SupervisorSettings(
            rules=RestartRules(restarts=KILLS, no_progress=0, first_pause=0.0), run=str(folder)
        ),
        report=report,
        newest_checkpoint=newest_checkpoint,
        environ=dict(os.environ),
    ).run()
    assert code == 0
    ends = [event for event in read_events(folder) if isinstance(event, AttemptEnded)]
    killed = [end for end in ends if end.signal == signal.SIGKILL]
    # The very first may be killed before there is a folder to write its end to.
    assert KILLS - 1 <= len(killed) <= KILLS
    assert ends[-1].cause == "finished"
    assert FailureHistory.from_events(read_events(folder)).failures >= KILLS // 2
    assert len({end.checkpoint for end in killed}) > 5, "the kills fell into too few places"
    assert (tmp_path / "digest").read_text() == train(
        tmp_path / "undisturbed", epochs=EPOCHS, every="2 steps"
    )
