"""Graphs as PyG gives them: a DataLoader subclass with its own collating and its own iterator."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Graph:
    def __init__(self, x, edges, y):
        self.x, self.edges, self.y = x, edges, y


class Graphs(Dataset):
    def __init__(self, n):
        generator = torch.Generator().manual_seed(23)
        sizes = torch.randint(3, 7, (n,), generator=generator).tolist()
        self.items = [
            Graph(torch.randn(k, 4, generator=generator), torch.randint(k, (2, 2 * k), generator=generator),
                  torch.randn(1, generator=generator))
            for k in sizes
        ]  # fmt: skip

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def to_batch(graphs):
    offsets = torch.tensor([0, *[len(g.x) for g in graphs]]).cumsum(0)
    edges = torch.cat([g.edges + at for g, at in zip(graphs, offsets, strict=False)], 1)
    belongs = torch.cat([torch.full((len(g.x),), i) for i, g in enumerate(graphs)])
    batch = Graph(torch.cat([g.x for g in graphs]), edges, torch.stack([g.y for g in graphs]))
    batch.belongs = belongs
    return batch


class GraphLoader(DataLoader):
    def __init__(self, dataset, **options):
        super().__init__(dataset, collate_fn=to_batch, **options)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.neighbours, self.out = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, batch):
        gathered = torch.zeros_like(batch.x).index_add(0, batch.edges[1], batch.x[batch.edges[0]])
        hidden = torch.relu(self.own(batch.x) + self.neighbours(gathered))
        return self.out(torch.zeros(len(batch.y), 8).index_add(0, batch.belongs, hidden))


torch.manual_seed(23)
loader = GraphLoader(Graphs(40), batch_size=8, shuffle=True)
model = Net()
opt = torch.optim.Adam(model.parameters(), lr=0.01)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt) as run:
    for _epoch in run.epochs(4):
        for batch in run.batches(loader):
            loss = nn.functional.mse_loss(model(batch), batch.y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            record(run.step, loss)
            run.end_step(loss=loss)
