"""`holdfast rehearse`: a real command, real kills, the run's own folder untouched."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.doctor.rehearsed import RehearsalVerdict
from holdfast.doctor.rehearsing import rehearse
from holdfast.engine.rehearsal_plan import Records, plan_in

SCRIPT = """
import torch, holdfast
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
opt = torch.optim.Adam(model.parameters())
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
with holdfast.Run("runs/mine", model=model, optimizer=opt{more}) as run:
    for step in run.steps(40):
        loss = model(torch.randn(6, 4)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        run.end_step(loss=loss)
print("never reached in a rehearsal")
"""


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(", scheduler=sched", id="complete", marks=pytest.mark.torture),
        pytest.param("", id="without its scheduler"),
    ],
)
def test_a_script_is_proven_exact_or_its_gap_is_named(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT.replace("{more}", more))
    code = main(["rehearse", "--json", "--steps", "12", "--", sys.executable, "train.py"])
    said = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"], "something else was touched"
    if more:
        assert (code, said["exact"], said["harmless"]) == (0, True, []), said
        assert said["steps"] == 12
        assert "killed during a save" in said["tried"]
    else:
        assert (code, said["exact"]) == (5, False), said
        [cause] = said["difference"]["causes"]
        assert (cause["name"], cause["line"], cause["fix"]) == ("sched", 7, "Run(..., sched=sched)")


def test_a_rehearsal_that_is_told_to_end_ends_all_it_started(tmp_path: Path) -> None:
    """A launcher and what that has started, which would not end with it."""
    pipe, scratch = tmp_path / "pipe", tmp_path / "scratch"
    os.mkfifo(pipe)
    launcher = f"(trap '' TERM; exec > {pipe}; echo begun; while true; do sleep 1; done) & wait"
    program = "import sys; from holdfast.cli.main import main; sys.exit(main(sys.argv[1:]))"
    asked = ["rehearse", "--scratch", str(scratch), "--", "sh", "-c", launcher]
    command = [sys.executable, "-c", program, *asked]
    rehearsal = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    with open(pipe) as child:
        assert child.readline() == "begun\n"
        rehearsal.terminate()
        assert rehearsal.wait(60) == 128 + 15
        assert child.read() == "", "its end of the pipe is closed: it is gone"


def test_a_command_without_a_run_is_told_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli.main", "rehearse", "--", sys.executable, "-c", "print(1)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "opened no run" in done.stderr


# ---- ranks

DDP = """
import torch, holdfast
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2)))
opt = torch.optim.Adam(model.parameters())
noise = torch.Generator().manual_seed(dist.get_rank())
with holdfast.Run("runs/mine", model=model, optimizer=opt) as run:
    for epoch in run.epochs(4):
        loader.sampler.set_epoch(epoch)
        for x, y in run.batches(loader):
            loss = (model(x) - y).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if {uses_noise}:
                loss = loss + torch.rand((), generator=noise)
            run.end_step(loss=loss)
"""


@pytest.mark.torture  # five and seven times torchrun, each with two imports of torch
@pytest.mark.parametrize("uses_noise", ["False", "dist.get_rank() == 1"], ids=["complete", "a gap on rank 1"])
def test_all_ranks_of_torchrun_are_proven_exact_or_the_rank_with_the_gap_is_named(
    uses_noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(DDP.replace("{uses_noise}", uses_noise))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    code = main(["rehearse", "--json", "--steps", "14", "--", *torchrun, "train.py"])
    said = json.loads(capsys.readouterr().out)
    assert said["ranks"] == 2
    if uses_noise == "False":
        assert (code, said["exact"], said["harmless"]) == (0, True, []), said
        assert said["tried"][-1] == "killed during a save"
    else:
        assert (code, said["exact"]) == (5, False), said
        assert said["difference"]["rank"] == 1
        assert [cause["name"] for cause in said["difference"]["causes"]] == ["noise"]


def of_two_ranks(folder: Path, *, changed: int = -1, killed: tuple[int, ...] = (0, 1)) -> RehearsalVerdict:
    """A launcher whose ranks write down what ranks write down. `changed` computes another loss when resumed;
    of the ranks only `killed` come to say that they were killed: a launcher ends the others."""

    def launch(environment: Mapping[str, str], said: Path) -> int:
        plan = plan_in(environment)
        assert plan is not None
        code = 0
        saved = Path(plan.folder) / "saved"
        begun = int(saved.read_text()) if saved.exists() else 0
        for rank in (0, 1):
            base: dict[str, Any] = {
                key: {} for key in ("streams", "tracked", "extras", "remembered", "things")
            }
            records = Records(plan.records, rank)
            records.add({"event": "opened", "resumed": begun or None})
            last = plan.save_from + 2 if plan.kill else plan.stop_at
            for step in range(begun + 1, last + 1):
                loss = float(step + (rank == changed and begun > 0)).hex()
                records.add(base | {"event": "step", "step": step, "epoch": 0, "loss": loss, "batches": []})
            if plan.kill:
                if rank in killed:
                    records.add({"event": "killed", "step": last, "saved": plan.save_from})
                code = 1  # as torchrun's
        if plan.kill:
            saved.parent.mkdir(exist_ok=True)
            saved.write_text(str(plan.save_from))
        return code

    return rehearse(launch, folder, steps=20, tell=lambda _: None)


def test_the_verdict_holds_for_every_rank(tmp_path: Path) -> None:
    exact = of_two_ranks(tmp_path / "exact")
    assert (exact.exact, exact.ranks) == (True, 2)
    verdict = of_two_ranks(tmp_path / "changed", changed=1)
    assert verdict.difference is not None, "rank 1 computed another loss, and nobody looked"
    assert (verdict.difference.rank, verdict.difference.step) == (1, 6)


def test_a_kill_that_only_one_rank_could_write_down_is_a_kill(tmp_path: Path) -> None:
    assert of_two_ranks(tmp_path, killed=(1,)).exact
