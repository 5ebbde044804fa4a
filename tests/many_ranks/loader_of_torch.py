"""A DDP training with torch's own sampler and workers. Arguments: run folder, step to die at (0: never).

Each rank appends what it was handed to `<folder>.<world>.<rank>`: epoch and sample, one line each.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from holdfast import Run

SAMPLES = 48


class Noisy(Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.randn(4) + index


def main(folder: str, last: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    sampler: DistributedSampler[tuple[int, torch.Tensor]] = DistributedSampler(Noisy())
    loader = DataLoader(Noisy(), batch_size=4, sampler=sampler, num_workers=1)
    with Run(folder, model=model, optimizer=optimizer) as run, open(f"{folder}.{world}.{rank}", "a") as seen:
        for epoch in run.epochs(2):
            sampler.set_epoch(epoch)
            for indices, x in run.batches(loader):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                seen.writelines(f"{epoch} {int(index)}\n" for index in indices)
                seen.flush()
                run.end_step()
                if run.step == last:
                    run.save_now().wait()
                    dist.barrier()
                    os._exit(7)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
