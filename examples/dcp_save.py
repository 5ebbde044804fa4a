"""A sharded training that saves through torch.distributed.checkpoint: only the writer and the reader change.

torchrun --nproc-per-node 2 examples/dcp_save.py runs/sharded   # and again, on as many ranks as you like
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast
from holdfast.integrations.torch_dcp import HoldfastReader, HoldfastWriter


def main(path: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def state() -> dict[str, object]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optim": moments, "step": step}

    step = 0
    if os.path.isdir(path) and holdfast.checkpoints(path):
        stored = state()
        dcp.load(stored, storage_reader=HoldfastReader(path))  # the newest, every byte verified
        set_state_dict(model, optimizer, model_state_dict=stored["model"], optim_state_dict=stored["optim"])
        step = int(stored["step"])
        say(f"continuing at step {step} on {dist.get_world_size()} ranks")

    dist.barrier()  # nobody saves while another still looks for the newest
    with HoldfastWriter(path, keep=3) as writer:
        for _ in range(20):
            x = torch.randn(32, 16)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 5 == 0:
                dcp.save(state(), checkpoint_id=str(step), storage_writer=writer)
    say(f"done after step {step}, loss {loss.item():.4f}; try: holdfast list {path}")


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text)


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:  # without torchrun: alone
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "runs/sharded")
    finally:
        dist.destroy_process_group()
