"""Mixed precision: autocast, a GradScaler whose scale moves, clipping behind unscale_."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
loader = DataLoader(TensorDataset(torch.randn(40, 6), torch.randn(40, 1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=optimizer, scaler=scaler) as run:
    for _epoch in run.epochs(4):
        for x, y in run.batches(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            # The scale shapes what bf16 rounds, so it belongs to what is compared.
            record(run.step, loss.detach() * scaler.get_scale())
            run.end_step(loss=loss)
