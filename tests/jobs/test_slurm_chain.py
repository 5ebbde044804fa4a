"""`holdfast slurm status`: the attempts of a run, from its own records, with and without Slurm."""

import json
from pathlib import Path

import pytest

from holdfast.checkpoints.write import CheckpointDraft, write_checkpoint
from holdfast.cli.main import main
from holdfast.cli.running.slurm_status import attempts_of
from holdfast.events import AttemptStarted, Event, Progress, RunEnded, RunStarted
from holdfast.stores.journal import Journal
from holdfast.stores.store import CheckpointStore


def started(epoch: int, at: float, step: int) -> RunStarted:
    return RunStarted(time=at, step=step, host="n1", pid=1, writer_epoch=epoch)


STORY: list[Event] = [
    started(1, 100.0, 0),
    Progress(time=150.0, step=40, epoch=0, step_seconds=1.0),
    RunEnded(time=160.0, step=50, how="stopped"),
    started(2, 200.0, 50),
    Progress(time=240.0, step=90, epoch=0, step_seconds=1.0),
    started(3, 300.0, 70),
]


def test_every_attempt_is_told_with_how_it_ended() -> None:
    attempts = attempts_of(STORY, {1: "40_1", 2: "40_2"})
    assert [one.ended for one in attempts] == ["stopped", "killed", "running or killed"]
    assert [one.job for one in attempts] == ["40_1", "40_2", None]
    assert [(one.first_step, one.last_step) for one in attempts] == [(0, 50), (50, 90), (70, 70)]
    assert [one.seconds for one in attempts] == [60.0, 40.0, None]


def test_the_time_in_the_queue_is_not_counted_as_time_of_the_attempt() -> None:
    """The next job's supervisor writes its first line before its training opens the run."""
    waited = AttemptStarted(time=5000.0, attempt=0, pid=1)
    killed = [*STORY[3:5], waited, started(3, 5010.0, 70)]
    stopped = [*STORY[:3], waited, started(3, 5010.0, 50)]
    assert attempts_of(killed, {})[0].seconds == 40.0
    assert attempts_of(stopped, {})[0].seconds == 60.0


def make_run(folder: Path, *, complete: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    with CheckpointStore(folder) as store:
        epoch = store.claim()
        draft = CheckpointDraft(
            writer_epoch=epoch, step=50, created="", reason="test", progress={"complete": complete},
            environment={"variables": {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "1"}},
        )  # fmt: skip
        write_checkpoint(store, draft, [])
    with CheckpointStore(folder) as store:
        store.claim()
    Journal(folder).append(*STORY[:5])


def test_the_command_shows_the_chain_outside_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run", complete=False, monkeypatch=monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["slurm", "status", str(tmp_path / "run"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["complete"] is False
    # The checkpoint of the second attempt is gone or was never made; its claim still knows the job.
    assert [one["job"] for one in said["attempts"]] == ["40_1", "41"]
    assert main(["slurm", "status", str(tmp_path / "run")]) == 0
    assert "2 attempts; the work is not complete" in capsys.readouterr().out


@pytest.mark.parametrize("complete", [True, False])
def test_finished_answers_with_its_exit_code(
    complete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run", complete=complete, monkeypatch=monkeypatch)
    assert main(["slurm", "finished", str(tmp_path / "run")]) == (0 if complete else 1)


def test_a_run_that_never_was_is_not_finished(tmp_path: Path) -> None:
    assert main(["slurm", "finished", str(tmp_path / "nowhere")]) == 1


def test_a_hand_over_outside_slurm_passes_the_code_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run", complete=False, monkeypatch=monkeypatch)
    monkeypatch.delenv("SLURM_JOB_ID")
    run = str(tmp_path / "run")
    assert main(["slurm", "hand-over", run, "--requeue", "--code", "75"]) == 75
    assert main(["slurm", "hand-over", run, "--chain", "--code", "4"]) == 4
    assert "failed with exit code 4" in capsys.readouterr().out
