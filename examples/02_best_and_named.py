"""Keep the best checkpoint by a metric, keep one for ever under a name, and get weights back without a Run.

python examples/02_best_and_named.py runs/best
"""

import sys

import torch
from torch import nn

import holdfast


def main(path: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x @ torch.randn(8, 1)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    with holdfast.Run(
        path,
        model=model,
        optimizer=optimizer,
        every="10 steps",
        keep="latest 2, lowest 1 of val_loss",
    ) as run:
        for step in run.steps(60):
            loss = nn.functional.mse_loss(model(x[:192]), y[:192])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                val_loss = nn.functional.mse_loss(model(x[192:]), y[192:]).item()
            run.end_step(loss=loss, val_loss=val_loss)
            if step == 29:
                name = run.save_now("half-way", keep="half-way", notes="for the paper").wait()
                print(f"saved for ever: {name}")

    for checkpoint in holdfast.checkpoints(path):
        print(f"step {checkpoint.step}: val_loss {checkpoint.metrics['val_loss']:.5f}, {checkpoint.reason}")

    # Anywhere else, without the training objects:
    weights = holdfast.load_weights(path, step=30)
    print(f"weights of step 30: {', '.join(weights)}")
    # Or into objects of your own, without taking the run over:
    fresh = nn.Linear(8, 1)
    resumed = holdfast.restore(path, into={"model": fresh}, step=30)
    print(f"restored step {resumed.step}, equal: {torch.equal(fresh.weight, weights['weight'])}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/best")
