"""A Trainer: everything hangs on self, the step is a method, the learning rate a function of a counter."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Counter:
    def __init__(self):
        self.updates = 0

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


class Trainer:
    def __init__(self):
        torch.manual_seed(30)
        data = TensorDataset(torch.randn(40, 6), torch.randn(40, 1))
        self.loader = DataLoader(data, batch_size=8, shuffle=True)
        self.model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.0)
        self.counter = Counter()

    def train_step(self, x, y):
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 * min(1.0, (self.counter.updates + 1) / 10)
        loss = nn.functional.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.counter.updates += 1
        return loss.detach()

    def train_epoch(self, run):
        for x, y in run.batches(self.loader):
            loss = self.train_step(x, y)
            record(run.step, loss)
            run.end_step(loss=loss)

    def fit(self):
        with holdfast.Run(
            RUN, every="3 steps", model=self.model, optimizer=self.optimizer, counter=self.counter
        ) as run:
            for _epoch in run.epochs(4):
                self.train_epoch(run)


if __name__ == "__main__":
    Trainer().fit()
