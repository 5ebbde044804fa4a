"""Three ways to say when: a rhythm, a budget, a promise; and what the policy answers.

python examples/04_when_to_save.py runs/when
"""

import sys

import torch
from torch import nn

import holdfast

SETTINGS = {
    "rhythm": {"every": "25 steps"},  # what you would have written by hand
    "budget": {"budget": "2%"},  # the default way: saves may take this share of the time
    "promise": {"max_loss": "5 min"},  # a failure may cost this much training
}


def main(path: str) -> None:
    for name, setting in SETTINGS.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        with holdfast.Run(f"{path}/{name}", model=model, optimizer=optimizer, **setting) as run:
            for _ in run.steps(100):
                x = torch.randn(32, 32)
                loss = (model(x) - x[:, :1]).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.end_step(loss=loss)
            print(f"{name}: {run.policy.explain()}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/when")
