"""A curriculum: a sampler of one's own that lets harder samples in as epochs go by."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Curriculum(Sampler):
    """The easiest share of the samples, shuffled with (seed, epoch)."""

    def __init__(self, difficulty, seed):
        self.order = difficulty.argsort().tolist()
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.order) * (2 + min(self.epoch, 2)) // 4

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        easy = self.order[: len(self)]
        return iter([easy[i] for i in torch.randperm(len(easy), generator=generator).tolist()])


torch.manual_seed(15)
x_all = torch.randn(64, 6)
sampler = Curriculum(x_all.norm(dim=1), seed=15)
loader = DataLoader(TensorDataset(x_all, x_all.sum(1, keepdim=True)), batch_size=8, sampler=sampler)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 1))
opt = torch.optim.RMSprop(model.parameters(), lr=0.005, momentum=0.5)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt) as run:
    for epoch in run.epochs(4):
        sampler.set_epoch(epoch)
        for x, y in run.batches(loader):
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            record(run.step, loss)
            run.end_step(loss=loss)
