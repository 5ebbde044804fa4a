"""LoRA: a frozen base that no checkpoint needs, adapters that train."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + nn.functional.dropout(x, 0.1) @ self.a.T @ self.b.T


torch.manual_seed(6)
loader = DataLoader(TensorDataset(torch.randn(48, 8), torch.randn(48, 4)), batch_size=8, shuffle=True)
model = nn.Sequential(LoRA(nn.Linear(8, 12)), nn.GELU(), LoRA(nn.Linear(12, 4)))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)

with holdfast.Run(RUN, every="3 steps", save_frozen=False, model=model, optimizer=optimizer) as run:
    for _epoch in run.epochs(4):
        for x, y in run.batches(loader):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record(run.step, loss)
            run.end_step(loss=loss)
