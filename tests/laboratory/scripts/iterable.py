"""A stream that can only be read from its beginning, shuffled in a buffer as it comes."""

import random

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        source = torch.Generator().manual_seed(32)
        waiting = []
        for _ in range(48):
            waiting.append(torch.randn(6, generator=source))
            if len(waiting) == 8:
                yield waiting.pop(random.randrange(8))
        random.shuffle(waiting)
        yield from waiting


random.seed(32)
torch.manual_seed(32)
loader = DataLoader(Stream(), batch_size=8)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
opt = torch.optim.Adamax(model.parameters(), lr=0.01)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt) as run:
    for _epoch in run.epochs(4):
        for x in run.batches(loader):
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            opt.zero_grad()
            loss.backward()
            opt.step()
            record(run.step, loss)
            run.end_step(loss=loss)
