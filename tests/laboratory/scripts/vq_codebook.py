"""A vector-quantised autoencoder: a codebook moved by averages, dead codes brought back at random."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Codebook(nn.Module):
    def __init__(self, codes, width):
        super().__init__()
        self.register_buffer("codes", torch.randn(codes, width))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, z):
        index = torch.cdist(z, self.codes).argmin(1)
        if self.training:
            with torch.no_grad():
                chosen = nn.functional.one_hot(index, len(self.codes)).float()
                self.counts.mul_(0.9).add_(0.1 * chosen.sum(0))
                self.sums.mul_(0.9).add_(0.1 * chosen.T @ z)
                dead = self.counts < 0.3
                if dead.any():
                    self.sums[dead] = z[torch.randint(len(z), (int(dead.sum()),))]
                    self.counts[dead] = 1.0
                self.codes.copy_(self.sums / self.counts[:, None])
        return z + (self.codes[index] - z).detach(), ((z - self.codes[index].detach()) ** 2).mean()


torch.manual_seed(14)
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8, shuffle=True)
encoder, decoder, book = nn.Linear(8, 3), nn.Linear(3, 8), Codebook(12, 3)
opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.02)

with holdfast.Run(RUN, every="3 steps", encoder=encoder, decoder=decoder, book=book, opt=opt) as run:
    for _epoch in run.epochs(3):
        for (x,) in run.batches(loader):
            quantised, commit = book(encoder(x))
            loss = nn.functional.mse_loss(decoder(quantised), x) + 0.25 * commit
            opt.zero_grad()
            loss.backward()
            opt.step()
            record(run.step, loss)
            run.end_step(loss=loss)
