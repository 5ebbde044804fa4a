"""nanoGPT's data: random crops of a memory-mapped file, the next batch fetched while this one is computed."""

import os
import tempfile

import numpy as np
import torch
from switch import RUN, holdfast, record
from torch import nn

torch.manual_seed(17)
file = os.path.join(tempfile.gettempdir(), f"laboratory_tokens_{os.getuid()}_{os.getpid()}.bin")
np.random.default_rng(0).integers(0, 20, 2000).astype(np.uint16).tofile(file)
data = np.memmap(file, dtype=np.uint16, mode="r")
os.unlink(file)


def get_batch():
    at = torch.randint(len(data) - 9, (6,))
    x = torch.stack([torch.from_numpy(data[i : i + 8].astype(np.int64)) for i in at])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 9].astype(np.int64)) for i in at])
    return x, y


model = nn.Sequential(nn.Embedding(20, 12), nn.Dropout(0.1), nn.Linear(12, 20))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
max_iters = 30

with holdfast.Run(RUN, every="3 steps", model=model, optimizer=optimizer) as run:
    ahead = run.extras
    X, Y = ahead["batch"] if "batch" in ahead else get_batch()
    for it in run.steps(max_iters):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 - it / max_iters)
        logits = model(X)
        loss = nn.functional.cross_entropy(logits.view(-1, 20), Y.view(-1))
        X, Y = get_batch()  # while the accelerator would still be busy
        ahead["batch"] = (X, Y)  # without: pass
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        record(run.step, loss)
        run.end_step(loss=loss)
