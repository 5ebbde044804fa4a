"""Stochastic weight averaging: torch's AveragedModel and SWALR in the last epochs."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(8)
loader = DataLoader(TensorDataset(torch.randn(40, 6), torch.randn(40, 1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
swa_model = AveragedModel(model)
swa_sched = SWALR(opt, swa_lr=0.01, anneal_epochs=2)
swa_start = 2

with holdfast.Run(
    RUN, every="2 steps", model=model, opt=opt, swa_model=swa_model, swa_sched=swa_sched
) as run:
    for epoch in run.epochs(5):
        for x, y in run.batches(loader):
            loss = nn.functional.mse_loss(model(x), y)
            if epoch >= swa_start:
                with torch.no_grad():
                    loss += 0.1 * nn.functional.mse_loss(swa_model.module(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if epoch >= swa_start:
                swa_model.update_parameters(model)
                swa_sched.step()
            record(run.step, loss)
            run.end_step(loss=loss)
