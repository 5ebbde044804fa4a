"""Distillation: a teacher that never changes and that no checkpoint needs."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(27)
loader = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=8, shuffle=True)
teacher = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 4)).eval().requires_grad_(False)
student = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
opt = torch.optim.Adam(student.parameters(), lr=0.01)

with holdfast.Run(RUN, every="3 steps", student=student, optimizer=opt) as run:
    for _epoch in run.epochs(4):
        for (x,) in run.batches(loader):
            loss = nn.functional.kl_div(
                student(x).log_softmax(1), teacher(x).softmax(1), reduction="batchmean"
            )
            opt.zero_grad()
            loss.backward()
            opt.step()
            record(run.step, loss)
            run.end_step(loss=loss)
