"""`holdfast rehearse`: a real command, real kills, the run's own folder untouched."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main

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


@pytest.mark.parametrize("more", [", scheduler=sched", ""], ids=["complete", "without its scheduler"])
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


def test_a_command_without_a_run_is_told_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli.main", "rehearse", "--", sys.executable, "-c", "print(1)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "opened no run" in done.stderr
