"""SAM: an optimizer around an optimizer, two passes per step."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, dict(rho=rho, **options))
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        grads = [p.grad for g in self.param_groups for p in g["params"]]
        norm = torch.norm(torch.stack([g.norm() for g in grads]))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * group["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.copy_(self.state[p]["old_p"])
        self.base_optimizer.step()
        self.zero_grad()

    def state_dict(self):
        return self.base_optimizer.state_dict()

    def load_state_dict(self, state):
        self.base_optimizer.load_state_dict(state)
        self.param_groups = self.base_optimizer.param_groups


torch.manual_seed(9)
loader = DataLoader(TensorDataset(torch.randn(40, 6), torch.randn(40, 1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=optimizer) as run:
    for _epoch in run.epochs(4):
        for x, y in run.batches(loader):
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.first_step()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            record(run.step, loss)
            run.end_step(loss=loss)
