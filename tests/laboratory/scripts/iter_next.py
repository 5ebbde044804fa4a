"""iter and next by hand: a new iterator when the old one is used up."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(19)
loader = DataLoader(TensorDataset(torch.randn(36, 6), torch.randn(36, 1)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
opt = torch.optim.Adagrad(model.parameters(), lr=0.05)

with holdfast.Run(RUN, every="4 steps", model=model, optimizer=opt) as run:
    for _epoch in run.epochs(4):
        batches = iter(run.batches(loader))
        while True:
            try:
                x, y = next(batches)
            except StopIteration:
                break
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            record(run.step, loss)
            run.end_step(loss=loss)
