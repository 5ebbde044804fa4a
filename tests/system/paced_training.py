"""A small training that needs three jobs: in the first two it is too slow to finish within a minute.

Writes the digest of its result when it is done. Dropout, momentum and a shuffled loader: whatever a restart
gets wrong changes the digest.
"""

import hashlib
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import holdfast

EPOCHS = 10
SLOW, QUICK = 0.3, 0.01


def pace() -> float:
    """Seconds that each of the 350 steps takes; outside Slurm none."""
    if "SLURM_JOB_ID" not in os.environ:
        return 0.0
    jobs_before = (
        int(os.environ.get("SLURM_ARRAY_TASK_ID", "1")) - 1 + int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    )
    return SLOW if jobs_before < int(os.environ.get("SLOW_JOBS", "2")) else QUICK


def main(run_folder: str, result: str) -> None:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(280, 8, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, shuffle=True)
    with holdfast.Run(run_folder, model=model, optimizer=optimizer, every="50 steps") as run:
        for _epoch in run.epochs(EPOCHS):
            for inputs, labels in run.batches(loader):
                time.sleep(pace())
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.end_step(loss=loss)
        if run.epoch < EPOCHS:
            return
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        digest.update(state["exp_avg"].numpy().tobytes() + state["exp_avg_sq"].numpy().tobytes())
    with open(result, "w") as file:
        file.write(f"{run.step} {digest.hexdigest()}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
