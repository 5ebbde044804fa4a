"""L-BFGS: the optimizer calls the model, and keeps a history of lists of tensors."""

import torch
from switch import RUN, holdfast, record
from torch import nn

torch.manual_seed(10)
x = torch.linspace(-2, 2, 40)[:, None]
y = torch.sin(3 * x)
model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4, history_size=5)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=optimizer) as run:
    for _step in run.steps(20):

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        record(run.step, loss)
        run.end_step(loss=loss)
