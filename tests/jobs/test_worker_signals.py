"""A scheduler's SIGTERM reaches every process of a job, the loader's workers too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.jobs.exit_codes import PLEASE_RUN_AGAIN

# After the signal the step needs more batches than the workers had ready, so dead ones would be noticed.
SCRIPT = """
import os, sys, torch, holdfast
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.ones(400, 4)), batch_size=2, num_workers=2)
    with holdfast.Run(sys.argv[1], model=model, optimizer=optimizer) as run:
        for _ in run.epochs(2):
            for number, (inputs,) in enumerate(run.batches(loader)):
                model(inputs).sum().backward()
                if number == 3:
                    os.system(f"kill -s {sys.argv[2]} -- -{os.getpgid(0)}")
                if number % 40 == 39:
                    optimizer.step()
                    optimizer.zero_grad()
                    run.end_step()
"""


@pytest.mark.parametrize("name", ["TERM", "USR1"])
def test_workers_outlive_a_signal_to_the_whole_job(tmp_path: Path, name: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "run"), name],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == PLEASE_RUN_AGAIN, done.stderr
    assert holdfast.checkpoints(tmp_path / "run")[0].step == 1
