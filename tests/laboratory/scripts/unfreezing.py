"""Progressive unfreezing: one layer more per epoch, each with its own learning rate."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(13)
loader = DataLoader(TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,))), batch_size=8, shuffle=True)
layers = [nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)]
model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
groups = [{"params": layer.parameters(), "lr": 0.01 / 2 ** (2 - i)} for i, layer in enumerate(layers)]
opt = torch.optim.AdamW(groups)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.97)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt, sched=sched) as run:
    for epoch in run.epochs(4):
        for depth, layer in enumerate(layers):
            layer.requires_grad_(depth >= 2 - epoch)
        for x, y in run.batches(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            record(run.step, loss)
            run.end_step(loss=loss)
