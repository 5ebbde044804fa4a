"""Mistakes in scripts that can be seen without running them."""

from pathlib import Path

import pytest

from holdfast.doctor.script_checks import examine_script
from holdfast.jobs.sbatch import SbatchPlan, sbatch_script

SCRIPTS = Path(__file__).parents[1] / "laboratory" / "scripts"
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


LOOP = """
import holdfast, torch
from torch.utils.data import DataLoader
model, loader = make(), DataLoader(data)
opt = torch.optim.Adam(model.parameters())
sched = torch.optim.lr_scheduler.StepLR(opt, 3)
noise = torch.Generator().manual_seed(1)
best, total, seen = float("inf"), 0.0, 0
others = iter(loader)
with holdfast.Run("runs/x", model=model, opt=opt{more}) as run:
    for epoch in run.epochs(3):
        total = 0.0
        for x, y in run.batches(loader):
            loss = train(model, x + torch.randn(x.shape, generator=noise), y, next(others))
            sched.step()
            total += loss.item()
            seen += len(x)
            best = min(best, loss.item())
            {keep}
            run.end_step(loss=loss)
"""


def test_what_a_loop_carries_and_nothing_keeps_is_named_with_its_line() -> None:
    text = LOOP.replace("{more}", "").replace("{keep}", "pass")
    found = [f"{finding.check}: {finding.what}" for finding in examine_script("train.py", text)]
    named = {line.split(": ")[2].split()[0]: line.split(": ")[1] for line in found}
    assert named == {
        "sched": "train.py line 6", "noise": "train.py line 7", "total": "train.py line 16",
        "seen": "train.py line 17", "best": "train.py line 18", "others": "train.py line 14",
    }, found  # fmt: skip


def test_what_is_kept_or_wanted_silent_is_not_named() -> None:
    keep = "run.extras.update(noise=noise.get_state(), total=total, seen=seen, best=best)"
    text = (
        LOOP.replace("{more}", ", sched=sched").replace("{keep}", keep).replace("iter(loader)", "iter(run.x)")
    )
    assert checks("train.py", text) == []
    silent = LOOP.replace("{more}", ", sched=sched, check_loop=False").replace("{keep}", "pass")
    assert checks("train.py", silent) == []


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_complete_scripts_have_no_findings(path: Path) -> None:
    assert [finding.what for finding in examine_script(path.name, path.read_text())] == []
