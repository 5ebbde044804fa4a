"""The README's loop: epochs, a shuffled loader, dropout, BatchNorm, a scheduler per step."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
opt = torch.optim.AdamW(model.parameters(), lr=0.01)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 24)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt, scheduler=sched) as run:
    for _epoch in run.epochs(3):
        for x, y in run.batches(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            sched.step()
            opt.zero_grad()
            record(run.step, loss)
            run.end_step(loss=loss)
