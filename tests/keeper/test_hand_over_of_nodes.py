"""`holdfast slurm hand-over` after a job whose nodes ran out. Srun's own code is that of a lost keeper."""

from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.events import Event, RunEnded, RunStarted, SupervisorEnded
from holdfast.jobs import exit_codes
from holdfast.stores.journal import Journal
from holdfast.stores.store import CheckpointStore

KILLED = 137


def started() -> Event:
    return RunStarted(time=0.0, step=0, host="n1", pid=1, writer_epoch=1)


def ended(code: int) -> Event:
    return SupervisorEnded(time=0.0, attempts=1, exit_code=code, why="")


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([started(), ended(exit_codes.TOO_FEW_NODES)], exit_codes.PLEASE_RUN_AGAIN),
        # The survivors' run ended by an error; what the nodes had was saved all the same.
        (
            [started(), RunEnded(time=0.0, step=3, how="error"), ended(exit_codes.TOO_FEW_NODES)],
            exit_codes.PLEASE_RUN_AGAIN,
        ),
        # Nothing ran: queued again, it would wait for its nodes over and over.
        ([ended(exit_codes.TOO_FEW_NODES)], KILLED),
        ([started(), ended(exit_codes.TOO_FEW_NODES), ended(exit_codes.TOO_FEW_NODES)], KILLED),
        ([started(), ended(exit_codes.NO_PROGRESS)], KILLED),
    ],
)
def test_a_job_whose_nodes_ran_out_can_go_on_if_it_had_begun(
    tmp_path: Path, events: list[Event], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with CheckpointStore(tmp_path) as store:
        store.claim()
    Journal(tmp_path).append(*events)
    assert main(["slurm", "hand-over", str(tmp_path), "--requeue", "--code", str(KILLED)]) == code
