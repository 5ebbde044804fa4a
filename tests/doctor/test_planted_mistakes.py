"""Thirty mistakes that people make, each named by the doctor, and twenty healthy set-ups without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.clock import SystemClock
from holdfast.doctor.attempts_told import tell_attempts
from holdfast.doctor.checks import examine
from holdfast.doctor.facts import gather
from holdfast.doctor.script_checks import examine_script
from holdfast.events import AttemptEnded, RunStarted, SaveCommitted

TRAINING = """
import os, sys, time, datetime, torch
from torch.optim import AdamW
from torch.optim.lr_scheduler import StepLR
import holdfast
from torch.utils.data import DataLoader
model = build()
optimizer = AdamW(model.parameters())
scheduler = StepLR(optimizer, 3)
loader = DataLoader(data, batch_size=8, shuffle=True)
with holdfast.Run("runs/x", model=model, optimizer=optimizer, scheduler=scheduler) as run:
    for epoch in run.epochs(3):
        for x, y in run.batches(loader):
            step(x, y)
"""
SLURM = """#!/bin/bash
#SBATCH --time=1:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@300
srun holdfast run --run runs/x -- python train.py
holdfast slurm hand-over runs/x --requeue --code $?
"""
CHAIN = """#!/bin/bash
#SBATCH -t 02:00:00
#SBATCH --array=1-10%1
#SBATCH --signal=USR1@600
run=runs/x
srun holdfast run --run "$run" -- python train.py
holdfast slurm hand-over "$run" --chain --code $?
"""
PBS = "#!/bin/bash\n#PBS -l walltime=12:00:00\n#PBS -r y\nholdfast run --run runs/x -- python train.py\n"
LSF = "#!/bin/bash\n#BSUB -W 12:00\n#BSUB -r\nholdfast run --run runs/x -- python train.py\n"
SGE = "#!/bin/bash\n#$ -l h_rt=12:00:00\n#$ -r y\nholdfast run --run runs/x -- python train.py\n"
HAND_OVER = "holdfast slurm hand-over runs/x --requeue --code $?\n"
TRIED = (
    "try:\n    with holdfast.Run('runs/x', model=m) as run:\n        train(run)\n"
    "except BaseException:\n    sys.exit(0)\n"
)


def changed(text: str, *changes: str) -> str:
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    return text


MISTAKES = [
    # In batch scripts.
    ("job.sbatch", changed(SLURM, "srun holdfast", "holdfast"), "script-srun"),
    ("job.sbatch", changed(SLURM, "srun holdfast run --run runs/x -- ", ""), "script-srun"),
    ("job.sbatch", changed(CHAIN, "srun holdfast run", "time torchrun x.py #"), "script-srun"),
    ("job.sbatch", changed(SLURM, "USR1@300", "USR1@600", "1:00:00", "5:00"), "script-warning"),
    ("job.sbatch", changed(SLURM, "USR1@300", "USR1@2"), "script-warning"),
    ("job.sbatch", changed(SLURM, HAND_OVER, ""), "script-hand-over"),
    ("job.sbatch", changed(SLURM, "srun", "set -e\nsrun"), "script-set-e"),
    ("job.sbatch", changed(SLURM, "srun", "set -euo pipefail\nsrun"), "script-set-e"),
    ("job.sbatch", changed(SLURM, "#!/bin/bash", "#!/bin/bash -e"), "script-set-e"),
    ("job.sbatch", changed(SLURM, "runs/x", "runs/$SLURM_JOB_ID"), "script-run-path"),
    ("job.sbatch", changed(CHAIN, "run=runs/x", "run=runs/$(date +%F-%H%M)"), "script-run-path"),
    ("job.sbatch", changed(CHAIN, "run=runs/x", "run=$TMPDIR/x"), "script-location"),
    ("job.sbatch", changed(SLURM, "#SBATCH --signal=USR1@300\n", ""), "script-signal"),
    ("job.sbatch", changed(SLURM, "#SBATCH --requeue\n", ""), "script-continues"),
    ("job.sbatch", changed(CHAIN, "%1", ""), "script-array"),
    ("job.sbatch", changed(CHAIN, "%1", "%10"), "script-array"),
    ("job.sbatch", changed(SLURM, "#SBATCH --open-mode=append\n", ""), "script-log"),
    ("job.sbatch", changed(SLURM, "USR1@300", "B:USR1@300"), "script-trap"),
    ("job.pbs", changed(PBS, "#PBS -r y\n", ""), "script-continues"),
    ("job.pbs", changed(PBS, "runs/x", "runs/${PBS_JOBID}"), "script-run-path"),
    ("job.lsf", changed(LSF, "#BSUB -r", "#BSUB -J train[1-10]"), "script-array"),
    ("job.sge", changed(SGE, "#$ -r y", "#$ -t 1-10"), "script-array"),
    # In training scripts.
    ("t.py", changed(TRAINING, '"runs/x"', 'f"runs/{datetime.datetime.now():%F}"'), "script-run-path"),
    ("t.py", changed(TRAINING, '"runs/x"', 'f"runs/{os.environ[\'SLURM_JOB_ID\']}"'), "script-run-path"),
    ("t.py", changed(TRAINING, '"runs/x"', 'os.path.join(os.environ["TMPDIR"], "x")'), "script-run-path"),
    ("t.py", changed(TRAINING, "optimizer=optimizer, ", ""), "script-untracked"),
    ("t.py", changed(TRAINING, ", scheduler=scheduler", ""), "script-untracked"),
    ("t.py", "import sys, holdfast\n" + TRIED, "script-exit"),
    ("t.py", "import sys, holdfast\n" + changed(TRIED, "except BaseException:", "except:"), "script-exit"),
    ("t.py", changed(TRAINING, '"runs/x"', '"/tmp/x"'), "script-location"),
]  # fmt: skip

HEALTHY = [
    ("job.sbatch", SLURM),
    ("job.sbatch", CHAIN),
    ("job.sbatch", changed(SLURM, "USR1@300", "USR1@60", "1:00:00", "5:00")),
    ("job.sbatch", changed(SLURM, "$?", "$c", "train.py", "train.py && c=0 || c=$?", "srun", "set -e\nsrun")),
    ("job.sbatch", changed(SLURM, "USR1@300", "B:USR1@300", "srun", "trap 'kill -USR1 $pid' USR1\nsrun")),
    ("job.sbatch", changed(SLURM, "srun holdfast run", "srun \\\n    holdfast run")),
    ("job.sbatch", changed(CHAIN, "run=runs/x", "run=runs/seed-3")),
    ("job.sbatch", changed(CHAIN, "%1", "", "runs/x", "runs/$SLURM_ARRAY_TASK_ID")),
    ("job.sbatch", changed(SLURM, "srun", "# python runs under\nexport D=/tmp/cache\nsrun")),
    ("job.sbatch", changed(SLURM, "srun", "cp -r data $TMPDIR/data\nsrun")),
    ("job.sbatch", changed(CHAIN, "srun", "echo started at $(date) as $SLURM_JOB_ID\nsrun")),
    ("job.pbs", PBS),
    ("job.lsf", changed(LSF, "#BSUB -r", '#BSUB -J "train[1-10]%1"')),
    ("job.sge", changed(SGE, "#$ -r y", "#$ -t 1-10 -tc 1")),
    ("t.py", TRAINING),
    ("t.py", changed(TRAINING, "optimizer=optimizer, scheduler=scheduler", "parts=[optimizer, scheduler]")),
    ("t.py", "def build():\n    optimizer = torch.optim.SGD(p)\n    return optimizer\n" + TRAINING),
    ("t.py", "import sys, holdfast\n" + changed(TRIED, "BaseException", "Exception")),
    ("t.py", "import sys, holdfast\n" + changed(TRIED, "sys.exit(0)", "log()\n    raise")),
    ("t.py", changed(TRAINING, '"runs/x"', "sys.argv[1]", "step(x, y)", "step(x, y); now = time.time()")),
]  # fmt: skip


def found(name: str, text: str) -> list[str]:
    return [finding.check for finding in examine_script(name, text)]


def test_there_are_thirty_and_twenty() -> None:
    assert len(MISTAKES) == 30
    assert len(HEALTHY) == 20


@pytest.mark.parametrize("number", range(30))
def test_a_planted_mistake_is_named(number: int) -> None:
    name, text, check = MISTAKES[number]
    assert found(name, text) == [check], text


@pytest.mark.parametrize("number", range(20))
def test_a_healthy_one_has_no_findings(number: int) -> None:
    name, text = HEALTHY[number]
    assert found(name, text) == [], text


# ---- set-ups


def names(folder: Path, home: Path, **environ: str) -> list[str]:
    facts = gather(folder, SystemClock(), {"HOME": str(home), **environ}, deep=False)
    return [finding.check for finding in examine(facts)]


def test_a_home_folder_on_a_login_node_is_named(tmp_path: Path) -> None:
    (tmp_path / "home" / "run").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").touch(mode=0o755)
    in_cluster = names(tmp_path / "home" / "run", tmp_path / "home", PATH=str(tmp_path / "bin"))
    assert "location-in-home" in in_cluster
    assert "location-in-home" not in names(tmp_path / "home" / "run", tmp_path / "home", PATH="")


def test_a_path_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", str(tmp_path / "rnus")])
    said = capsys.readouterr().out
    assert "[not-there]" in said
    assert "nothing wrong" not in said


def test_a_deleted_working_folder_is_named_without_a_traceback(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); from holdfast.cli.main import main; "
    )
    done = subprocess.run(
        [sys.executable, "-c", code + "raise SystemExit(main(['doctor']))"],
        capture_output=True, text=True, timeout=60, check=False, cwd=os.getcwd(),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "[working-folder]" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_ends_of_attempts_are_explained_with_what_they_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        RunStarted(time=1000.0, step=0, host="a", pid=1, writer_epoch=1),
        SaveCommitted(time=1100.0, step=5, name="x", persist_seconds=0.1, bytes=1, reason="test"),
        AttemptEnded(
            time=1400.0, attempt=0, cause="out of memory", detail="killed by SIGKILL", planned=False,
            seconds=400.0, checkpoint="x", will_restart=True, then="", exit_code=None, signal=9,
        ),
        AttemptEnded(
            time=2000.0, attempt=1, cause="time limit", detail="deadline", planned=True,
            seconds=500.0, checkpoint="x", will_restart=False, then="", exit_code=75, signal=None,
        ),
    ]  # fmt: skip
    told = tell_attempts(events)
    assert [(end.cause, end.lost_seconds) for end in told] == [("out of memory", 300.0), ("time limit", 0.0)]
    (tmp_path / "events.jsonl").write_text("".join(event.to_line() + "\n" for event in events))
    main(["doctor", str(tmp_path)])
    assert "lost 5 min of work; ask for more memory" in capsys.readouterr().out
