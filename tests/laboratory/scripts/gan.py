"""A GAN: two models, two optimizers, noise out of torch's stream."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
loader = DataLoader(TensorDataset(torch.randn(60, 6)), batch_size=10, shuffle=True)
netG = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
netD = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, 1))
optG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
optD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()

with holdfast.Run(RUN, every="3 steps", netG=netG, netD=netD, optG=optG, optD=optD) as run:
    for _epoch in run.epochs(4):
        for (real,) in run.batches(loader):
            fake = netG(torch.randn(len(real), 4))
            optD.zero_grad()
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            lossD = bce(netD(real), ones) + bce(netD(fake.detach()), zeros)
            lossD.backward()
            optD.step()
            optG.zero_grad()
            lossG = bce(netD(fake), ones)
            lossG.backward()
            optG.step()
            record(run.step, lossD + lossG)
            run.end_step(loss=lossG)
