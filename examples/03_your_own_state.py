"""Anything with state_dict and load_state_dict travels along; plain values go into run.extras.

python examples/03_your_own_state.py runs/own-state
"""

import sys

import torch
from torch import nn

import holdfast


class MovingAverage:
    """An object of yours: no base class, two methods."""

    def __init__(self, decay: float = 0.98) -> None:
        self.decay = decay
        self.value: torch.Tensor | None = None
        self.count = 0

    def update(self, tensor: torch.Tensor) -> None:
        self.count += 1
        new = tensor.detach().clone()
        self.value = new if self.value is None else self.decay * self.value + (1 - self.decay) * new

    def state_dict(self) -> dict[str, object]:
        return {"value": self.value, "count": self.count}

    def load_state_dict(self, state: dict[str, object]) -> None:
        value, count = state["value"], state["count"]
        assert value is None or isinstance(value, torch.Tensor)
        assert isinstance(count, int)
        self.value, self.count = value, count


def main(path: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    average = MovingAverage()

    with holdfast.Run(path, model=model, optimizer=optimizer, average=average, every="20 steps") as run:
        for _ in run.steps(100):
            x = torch.randn(16, 4)  # the random streams are restored too
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update(model.weight)
            run.extras["examples_seen"] = run.extras.get("examples_seen", 0) + len(x)
            run.end_step(loss=loss)
        print(f"{run.extras['examples_seen']} examples in {run.step} steps, {average.count} averaged")
    # Without what holdfast restores, a second start would begin to count at zero again.
    assert run.extras["examples_seen"] == 16 * average.count == 1600


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/own-state")
