"""Truncated backpropagation: the hidden state is carried from batch to batch, through the whole text."""

import torch
from switch import RUN, holdfast, record
from torch import nn


class Carried:
    """The hidden state between two batches."""

    def __init__(self):
        self.hidden = torch.zeros(1, 4, 10)

    def state_dict(self):
        return {"hidden": self.hidden}

    def load_state_dict(self, state):
        self.hidden = state["hidden"]


torch.manual_seed(26)
text = torch.randint(0, 12, (4, 121))
embed, rnn, head = nn.Embedding(12, 8), nn.GRU(8, 10, batch_first=True), nn.Linear(10, 12)
model = nn.ModuleList([embed, rnn, head])
opt = torch.optim.Adam(model.parameters(), lr=0.01)
carried = Carried()

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=opt, carried=carried) as run:
    for step in run.steps(30):
        at = (step % 20) * 6
        x, y = text[:, at : at + 6], text[:, at + 1 : at + 7]
        out, hidden = rnn(embed(x), carried.hidden)
        carried.hidden = hidden.detach()
        loss = nn.functional.cross_entropy(head(out).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        opt.step()
        record(run.step, loss)
        run.end_step(loss=loss)
