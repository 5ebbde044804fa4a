"""Mistakes in scripts that can be seen without running them."""

import pytest

from holdfast.doctor.script_checks import examine_script
from holdfast.jobs.sbatch import SbatchPlan, sbatch_script

GOOD = """
import holdfast
from torch.utils.data import DataLoader
loader = DataLoader(data, batch_size=8, shuffle=True)
with holdfast.Run("runs/x", model=model, optimizer=optimizer) as run:
    for epoch in run.epochs(3):
        for x, y in run.batches(loader):
            step(x, y)
"""


def checks(name: str, text: str) -> list[str]:
    return [finding.check for finding in examine_script(name, text)]


def test_a_good_script_has_no_findings() -> None:
    assert checks("train.py", GOOD) == []


def test_the_script_that_holdfast_writes_has_no_findings() -> None:
    for array in (None, 10):
        plan = SbatchPlan(script="train.py", run="runs/x", time="1:00:00", warning_seconds=300, array=array)
        assert checks("train.sbatch", sbatch_script(plan)) == []


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ('"runs/x"', '"/tmp/x"', "script-location"),
        ("model=model", "keep=1, model=model", "script-keep"),
        ("model=model", 'every="1 step", model=model', "script-every"),
        ("model=model", 'tiers=["memory", "/tmp/run"], model=model', "script-tiers"),
        ("model=model, optimizer=optimizer", "keep=3", "script-nothing-tracked"),
        ("run.batches(loader)", "loader", "script-data"),
        ("run.batches(loader)", "enumerate(loader)", "script-data"),
        ("import holdfast", "import holdfast\nsignal.signal(signal.SIGTERM, stop)", "script-signals"),
        ("with holdfast", "with (holdfast", "script-syntax"),
    ],
)
def test_a_mistake_in_a_training_script_is_found(old: str, new: str, check: str) -> None:
    assert old in GOOD
    assert check in checks("train.py", GOOD.replace(old, new))


def test_tiers_that_outlive_the_machine_are_fine() -> None:
    assert checks("train.py", GOOD.replace("model=model", 'tiers=["memory", "/lustre/x"], model=model')) == []


def test_a_run_that_is_never_opened_is_found() -> None:
    assert checks("t.py", "import holdfast\nholdfast.Run('runs/x', model=m)\n") == ["script-with"]
    assert checks("t.py", "import holdfast\nrun = holdfast.Run('runs/x', model=m)\nwith run:\n  pass\n") == []


def test_plain_torch_save_is_found() -> None:
    assert checks("train.py", "import torch\ntorch.save(model.state_dict(), 'x.pt')\n") == [
        "script-torch-save"
    ]


BATCH = """#!/bin/bash
#SBATCH --time=1:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@300
srun python train.py
holdfast slurm hand-over runs/x --requeue --code $?
"""


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("#SBATCH --signal=USR1@300\n", "", "script-signal"),
        ("#SBATCH --requeue\n", "", "script-continues"),
        ("--requeue", "--array=1-4", "script-array"),
        ("#SBATCH --open-mode=append\n", "", "script-log"),
        ("--signal=USR1", "--signal=B:USR1", "script-trap"),
    ],
)
def test_a_mistake_in_a_batch_script_is_found(old: str, new: str, check: str) -> None:
    assert checks("job.sbatch", BATCH) == []
    assert checks("job.sbatch", BATCH.replace(old, new)) == [check]


def test_other_files_are_left_alone() -> None:
    assert checks("notes.txt", "keep=1") == []
