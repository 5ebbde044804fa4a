"""Every rank of a torchrun job adds its number; rank 0 says the sum."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
number = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(number)
if dist.get_rank() == 0:
    print(f"the sum over {dist.get_world_size()} ranks is {number.item():.0f}", flush=True)
dist.destroy_process_group()
