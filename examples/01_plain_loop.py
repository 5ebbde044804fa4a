"""The three lines. Stop it with Ctrl-C or kill -9, start it again: it continues where it was, bit for bit.

python examples/01_plain_loop.py runs/plain
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast


def main(path: str) -> None:
    torch.manual_seed(0)
    angles = torch.rand(2048, 1) * 6.3
    loader = DataLoader(TensorDataset(angles, angles.sin()), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Dropout(0.05), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100)

    with holdfast.Run(
        path, model=model, optimizer=optimizer, scheduler=scheduler
    ) as run:  # restores if it can
        if run.resumed:
            print(f"continuing at step {run.resumed.step}, read in {run.resumed.seconds:.3f} s")
        for epoch in run.epochs(10):
            for x, y in run.batches(loader):  # continues mid-epoch; every sample once per epoch
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                run.end_step(loss=loss)
            print(f"epoch {epoch}: step {run.step}, loss {loss.item():.4f}")
    print(f"done after step {run.step}; try: holdfast list {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/plain")
