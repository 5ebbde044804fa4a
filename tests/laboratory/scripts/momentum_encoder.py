"""MoCo: a momentum encoder moved through .data in the forward pass, a queue of old keys."""

import copy

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_q = nn.Linear(8, 4)
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(4, 24), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    def forward(self, im_q, im_k):
        q = nn.functional.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            for param_q, param_k in zip(
                self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True
            ):
                param_k.data = param_k.data * 0.95 + param_q.data * 0.05
            k = nn.functional.normalize(self.encoder_k(im_k), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1) / 0.2
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + len(k)] = k.T
        self.queue_ptr[0] = (ptr + len(k)) % self.queue.shape[1]
        return nn.functional.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


torch.manual_seed(24)
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8, shuffle=True, drop_last=True)
model = MoCo()
optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.3, momentum=0.9)

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=optimizer) as run:
    for _epoch in run.epochs(3):
        for (x,) in run.batches(loader):
            loss = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record(run.step, loss)
            run.end_step(loss=loss)
