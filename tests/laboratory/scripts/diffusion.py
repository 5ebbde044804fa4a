"""A small DDPM: noise out of a generator of its own, an EMA of the weights by torch."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset


class Noise:
    """A generator of its own, so that changing the model leaves the noise alone."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def like(self, x):
        return torch.randn(x.shape, generator=self.generator)

    def state_dict(self):
        return {"state": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["state"])


torch.manual_seed(29)
noise = Noise(29)
betas = torch.linspace(1e-3, 0.2, 20)
alpha_bar = (1 - betas).cumprod(0)
loader = DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(5, 24), nn.SiLU(), nn.Linear(24, 4))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
opt = torch.optim.AdamW(model.parameters(), lr=0.005)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt, ema=ema, noise=noise) as run:
    for _epoch in run.epochs(4):
        for (x,) in run.batches(loader):
            t = torch.randint(0, 20, (len(x),))
            eps = noise.like(x)
            a = alpha_bar[t][:, None]
            noisy = torch.cat([a.sqrt() * x + (1 - a).sqrt() * eps, t[:, None] / 20], 1)
            loss = nn.functional.mse_loss(model(noisy), eps)
            opt.zero_grad()
            loss.backward()
            opt.step()
            ema.update_parameters(model)
            with torch.no_grad():
                judged = nn.functional.mse_loss(ema(noisy), eps)
            record(run.step, loss + judged)
            run.end_step(loss=loss)
