"""CycleGAN: two loaders side by side, four networks, a pool of old images, schedulers per epoch."""

import itertools
import random

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(5)
torch.manual_seed(5)
loader_a = DataLoader(TensorDataset(torch.randn(30, 5)), batch_size=5, shuffle=True)
loader_b = DataLoader(TensorDataset(torch.randn(30, 5) + 2), batch_size=5, shuffle=True)
gen_ab, gen_ba, dis_a, dis_b = (
    nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, out)) for out in (5, 5, 1, 1)
)
opt_g = torch.optim.Adam(itertools.chain(gen_ab.parameters(), gen_ba.parameters()), lr=1e-2)
opt_d = torch.optim.Adam(itertools.chain(dis_a.parameters(), dis_b.parameters()), lr=1e-2)
sched_g = torch.optim.lr_scheduler.LambdaLR(opt_g, lambda epoch: 1 - epoch / 6)
sched_d = torch.optim.lr_scheduler.LambdaLR(opt_d, lambda epoch: 1 - epoch / 6)


class ImagePool:
    """Hands out an old fake half of the time."""

    def __init__(self, size):
        self.size, self.images = size, []

    def query(self, image):
        if len(self.images) < self.size:
            self.images.append(image)
            return image
        if random.random() > 0.5:
            at = random.randrange(self.size)
            old, self.images[at] = self.images[at], image
            return old
        return image

    def state_dict(self):
        return {"images": self.images}

    def load_state_dict(self, state):
        self.images = list(state["images"])


pool = ImagePool(3)
nets = nn.ModuleDict({"ab": gen_ab, "ba": gen_ba, "a": dis_a, "b": dis_b})
with holdfast.Run(
    RUN, every="3 steps", nets=nets, opt_g=opt_g, opt_d=opt_d, sched_g=sched_g, sched_d=sched_d, pool=pool
) as run:
    for _epoch in run.epochs(4):
        for (a,), (b,) in zip(run.batches(loader_a, "a"), run.batches(loader_b, "b"), strict=False):
            fake_b, fake_a = gen_ab(a), gen_ba(b)
            cycle = (gen_ba(fake_b) - a).abs().mean() + (gen_ab(fake_a) - b).abs().mean()
            loss_g = cycle + ((dis_b(fake_b) - 1) ** 2).mean() + ((dis_a(fake_a) - 1) ** 2).mean()
            opt_g.zero_grad()
            loss_g.backward()
            opt_g.step()
            opt_d.zero_grad()
            old = pool.query(fake_b.detach())
            loss_d = (dis_b(old) ** 2).mean() + ((dis_b(b) - 1) ** 2).mean() + ((dis_a(a) - 1) ** 2).mean()
            loss_d.backward()
            opt_d.step()
            record(run.step, loss_g + loss_d)
            run.end_step(loss=loss_g)
        if run.epoch == _epoch:
            sched_g.step()
            sched_d.step()
