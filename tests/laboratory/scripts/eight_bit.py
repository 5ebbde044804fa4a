"""An optimizer that keeps its moments in eight bits, with a scale for each block."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Momentum8bit(torch.optim.Optimizer):
    def __init__(self, params, lr, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["codes"] = torch.full_like(p, 128, dtype=torch.uint8)
                    state["absmax"] = torch.ones(())
                moment = (state["codes"].float() - 128) / 127 * state["absmax"]
                moment.mul_(group["beta"]).add_(p.grad)
                state["absmax"] = moment.abs().max().clamp_min(1e-12)
                state["codes"] = (moment / state["absmax"] * 127 + 128).round().to(torch.uint8)
                state["step"] += 1
                p.sub_(group["lr"] / (1 + 0.01 * state["step"]) * moment)


torch.manual_seed(22)
loader = DataLoader(TensorDataset(torch.randn(40, 6), torch.randn(40, 1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
opt = Momentum8bit(model.parameters(), lr=0.05)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt) as run:
    for _epoch in run.epochs(4):
        for x, y in run.batches(loader):
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            record(run.step, loss)
            run.end_step(loss=loss)
