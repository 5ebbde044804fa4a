"""A notebook's cells, one after the other: everything is global, functions reach for it."""

# %%
import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(18)

# %%
xs = torch.randn(50, 4)
ys = (xs[:, :1] * xs[:, 1:2]).tanh()
train_dl = DataLoader(TensorDataset(xs, ys), batch_size=10, shuffle=True)

# %%
net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optim = torch.optim.Adam(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optim, step_size=1, gamma=0.7)


# %%
def train_step(xb, yb):
    optim.zero_grad()
    loss = nn.functional.mse_loss(net(xb), yb)
    loss.backward()
    optim.step()
    return loss.item()


# %%
run = holdfast.Run(RUN, every="2 steps", net=net, optim=optim, scheduler=scheduler)
with run:
    for _epoch in run.epochs(5):
        for xb, yb in run.batches(train_dl):
            value = train_step(xb, yb)
            if len(xs) // 10 == (run.step % 5) + 1:
                scheduler.step()
            record(run.step, value)
            run.end_step(loss=value)
