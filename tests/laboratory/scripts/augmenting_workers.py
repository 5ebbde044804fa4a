"""Persistent workers that augment at random, from all three generators."""

import random

import numpy as np
import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self):
        self.x = torch.randn(40, 6, generator=torch.Generator().manual_seed(25))

    def __len__(self):
        return 40

    def __getitem__(self, i):
        x = self.x[i] + 0.1 * torch.randn(6) + 0.1 * random.random()
        return x, x.sum(0, keepdim=True)


def seed_worker(worker):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


if __name__ == "__main__":
    random.seed(25)
    torch.manual_seed(25)
    loader = DataLoader(
        Augmented(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True,
        worker_init_fn=seed_worker,
    )  # fmt: skip
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt) as run:
        for _epoch in run.epochs(3):
            for x, y in run.batches(loader):
                loss = nn.functional.mse_loss(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                record(run.step, loss)
                run.end_step(loss=loss)
