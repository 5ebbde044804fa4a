"""A weighted sampler, validation, a scheduler on a plateau, early stopping, the best value so far."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(28)
xs, ys = torch.randn(40, 6), torch.randint(0, 2, (40,))
sampler = WeightedRandomSampler(torch.where(ys == 0, 1.0, 3.0), 40)
train_loader = DataLoader(TensorDataset(xs, ys), batch_size=8, sampler=sampler)
val_loader = DataLoader(TensorDataset(torch.randn(16, 6), torch.randint(0, 2, (16,))), batch_size=8)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
opt = torch.optim.Adam(model.parameters(), lr=0.03)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.5)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt, sched=sched) as run:
    for epoch in run.epochs(5):
        model.train()
        for x, y in run.batches(train_loader):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            record(run.step, loss)
            run.end_step(loss=loss)
        model.eval()
        with torch.no_grad():
            val_loss = sum(float(nn.functional.cross_entropy(model(x), y)) for x, y in val_loader)
        if run.extras.get("judged", -1) < epoch:
            sched.step(val_loss)
            run.extras["judged"] = epoch
