"""No word about steps: pulling the next batch behind an optimizer step is the boundary."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(31)
loader = DataLoader(TensorDataset(torch.randn(40, 6), torch.randn(40, 1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 1))
opt = torch.optim.Adam(model.parameters(), lr=0.01)
sched = torch.optim.lr_scheduler.CyclicLR(opt, 0.001, 0.02, step_size_up=5)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt, sched=sched) as run:
    for _epoch in run.epochs(4):
        for x, y in run.batches(loader):
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            record(run.step, loss)
