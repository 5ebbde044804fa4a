"""A small training that takes its time, for jobs with time limits. Writes the digest of its result when done.

Dropout, momentum and a shuffled loader: whatever a restart gets wrong changes the digest.
"""

import hashlib
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import holdfast

EPOCHS = 18


def main(run_folder: str, pace: float, result: str) -> None:
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
                time.sleep(pace)
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
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
