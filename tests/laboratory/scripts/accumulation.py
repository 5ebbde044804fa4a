"""Gradient accumulation: four small batches to a step, a scheduler with warm-up behind each."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)
loader = DataLoader(TensorDataset(torch.randn(96, 6), torch.randn(96, 1)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
accumulate = 4

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=optimizer, warmup=warmup) as run:
    for _epoch in run.epochs(2):
        for x, y in run.batches(loader):
            loss = nn.functional.mse_loss(model(x), y) / accumulate
            loss.backward()
            if (run.step + 1) % accumulate == 0:
                optimizer.step()
                warmup.step()
                optimizer.zero_grad()
            record(run.step, loss)
            run.end_step(loss=loss)
