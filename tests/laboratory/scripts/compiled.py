"""A compiled model: the wrapper is what trains, its names carry a prefix."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)
loader = DataLoader(TensorDataset(torch.randn(40, 6), torch.randn(40, 1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 1))
model = torch.compile(model, backend="eager")
opt = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt) as run:
    for _epoch in run.epochs(4):
        for x, y in run.batches(loader):
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            record(run.step, loss)
            run.end_step(loss=loss)
