"""Two ranks under torchrun, of which one kills itself once: folder, steps, who, at which step."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from holdfast import Run


def main() -> None:
    folder, steps, victim, at = Path(sys.argv[1]), *map(int, sys.argv[2:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, generation = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    log = os.open(folder / f"losses-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Run(folder / "run", every="2 steps", model=model, optimizer=optimizer) as run:
        for _ in run.steps(steps):
            optimizer.zero_grad()
            loss = (model(torch.randn(4, 8)) - rank).square().mean()
            loss.backward()
            optimizer.step()
            run.end_step()
            os.write(log, (json.dumps([generation, run.step, loss.item().hex()]) + "\n").encode())
            if run.step == 5:
                run.save_now().wait()
            if generation == 0 and (rank, run.step) == (victim, at):
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


main()
