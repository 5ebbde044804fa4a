"""Steps, not epochs: a loader that is read over and over until enough was done."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(16)
loader = DataLoader(TensorDataset(torch.randn(30, 6), torch.randn(30, 1)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
opt = torch.optim.NAdam(model.parameters(), lr=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.02, total_steps=33)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt, sched=sched) as run:
    for x, y in run.steps(32, over=loader):
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        record(run.step, loss)
        run.end_step(loss=loss)
