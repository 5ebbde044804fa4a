"""Kill this at any time and start it again: it goes on with the very next sample, to the same final loss.

python examples/resume_mid_epoch.py runs/example
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import holdfast


class Circles(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Noisy points, inside or outside a circle. The noise is drawn anew for each epoch, and is the same after
    every restart."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        angle, radius = torch.tensor(index * 0.7), torch.tensor((index % 20) / 10)
        point = torch.stack([angle.cos(), angle.sin()]) * radius
        return point + 0.05 * torch.randn(2), (radius < 1).float()


def main(folder: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Circles(), batch_size=32, shuffle=True, num_workers=2)
    with holdfast.Run(folder, model=model, optimizer=optimizer, every="20 steps", audit_data=True) as run:
        for epoch in run.epochs(5):
            for points, inside in run.batches(loader):
                loss = nn.functional.binary_cross_entropy_with_logits(model(points).squeeze(1), inside)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.end_step(loss=loss)
            print(f"epoch {epoch}: step {run.step}, loss {loss.item():.6f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/example")
