"""Training scripts that nobody wrote: features that people combine, composed by hypothesis.

A program of its own, as forked_scripts.py is. Each composition is run plain, with holdfast
and killed; the smallest one that fails is shown as a script.

python composed_scripts.py WORK EXAMPLES SEED
"""

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import hypothesis
from forked_scripts import examine, prepare
from hypothesis import strategies as st


@dataclass(frozen=True)
class Features:
    seed: int
    every: int
    batch: int
    two_optimizers: bool
    accumulate: int
    scheduler: str
    dropout: bool
    ema: bool
    noise: bool
    sums: bool
    loop: str
    leaves_at: int


FEATURES = st.builds(
    Features,
    seed=st.integers(0, 99), every=st.integers(1, 7), batch=st.sampled_from([4, 5, 8]),
    two_optimizers=st.booleans(), accumulate=st.integers(1, 3),
    scheduler=st.sampled_from(["", "step", "epoch"]), dropout=st.booleans(), ema=st.booleans(),
    noise=st.booleans(), sums=st.booleans(), loop=st.sampled_from(["batches", "enumerate", "two loaders"]),
    leaves_at=st.sampled_from([0, 0, 4]),
)  # fmt: skip

LOOPS = {
    "batches": "for x, y in run.batches(loader):",
    "enumerate": "for index, (x, y) in run.enumerate(loader):",
    "two loaders": "for (x, y), (u, _) in zip(run.batches(loader), run.batches(other)):",
}


def written(f: Features) -> str:
    """The script, as its author would have written it."""
    names = ["body", "head", "first"]
    lines = [
        "import copy", "import torch", "from switch import RUN, holdfast, record", "from torch import nn",
        "from torch.utils.data import DataLoader, TensorDataset", f"torch.manual_seed({f.seed})",
        "rows = lambda: TensorDataset(torch.randn(40, 4), torch.randn(40, 1))",
        f"loader, other = (DataLoader(rows(), batch_size={f.batch}, shuffle=True) for _ in range(2))",
        f"body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout({0.2 if f.dropout else 0.0}))",
        "head = nn.Linear(8, 1)",
    ]  # fmt: skip
    if f.two_optimizers:
        lines += ["first = torch.optim.Adam(body.parameters(), lr=0.01)"]
        lines += ["second = torch.optim.SGD(head.parameters(), lr=0.05, momentum=0.9)"]
        names.append("second")
    else:
        lines += ["first = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=0.01)"]
    if f.scheduler:
        lines += ["scheduler = torch.optim.lr_scheduler.StepLR(first, 2, gamma=0.8)"]
        names.append("scheduler")
    if f.ema:
        lines += ["ema = copy.deepcopy(head)"]
        names.append("ema")
    if f.noise:
        lines += ["noise = torch.Generator().manual_seed(5)"]
    given = ", ".join(f"{name}={name}" for name in names)
    lines += [f'with holdfast.Run(RUN, every="{f.every} steps", {given}) as run:']
    inner = _run(f)
    return "\n".join([*lines, *(f"    {line}" for line in inner), ""])


def _run(f: Features) -> list[str]:
    lines = ["if run.resumed: noise.set_state(run.extras['noise'])"] if f.noise else []
    lines += ["best = run.remember(loss=9.0, steps=0)"] if f.sums else []
    lines += ["for epoch in run.epochs(3):"]
    lines += ["    sums = run.remember(total=0.0, count=0)"] if f.sums else []
    lines += [f"    {LOOPS[f.loop]}", *(f"        {line}" for line in _step(f))]
    return [*lines, "    scheduler.step()"] if f.scheduler == "epoch" else lines


def _step(f: Features) -> list[str]:
    lines = [f"if index >= {f.leaves_at}: break"] if f.leaves_at and f.loop == "enumerate" else []
    lines += ["x = x + 0.1 * u"] if f.loop == "two loaders" else []
    lines += ["x = x + torch.randn(x.shape, generator=noise)"] if f.noise else []
    lines += ["features = body(x)", "loss = nn.functional.mse_loss(head(features), y)"]
    lines += ["loss = loss + (head(features) - ema(features).detach()).square().mean()"] if f.ema else []
    step = ["first.step()", "first.zero_grad()"]
    step += ["second.step()", "second.zero_grad()"] if f.two_optimizers else []
    step += ["scheduler.step()"] if f.scheduler == "step" else []
    lines += ["loss.backward()"]
    if f.accumulate > 1:
        lines += [f"if (run.step + 1) % {f.accumulate} == 0:", *(f"    {line}" for line in step)]
    else:
        lines += step
    if f.ema:
        lines += ["with torch.no_grad():"]
        lines += ["    for a, b in zip(ema.parameters(), head.parameters()): a.lerp_(b, 0.1)"]
    shown = "loss"
    if f.sums:
        lines += ["sums.total += loss.item()", "sums.count += 1", "best.steps += 1"]
        lines += ["best.loss = min(best.loss, loss.item())"]
        shown = "loss.item() + sums.total / sums.count + best.loss + best.steps"
    lines += ["run.extras['noise'] = noise.get_state()"] if f.noise else []
    return [*lines, f"record(run.step, {shown})", "run.end_step(loss=loss)"]


def check_compositions(work: Path, examples: int, seed: int) -> None:
    count = itertools.count()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), print_blob=False,
    )  # fmt: skip
    @hypothesis.given(FEATURES)
    def composed(features: Features) -> None:
        script = work / f"composed{next(count)}.py"
        script.write_text(written(features))
        result = examine(str(script), work / "runs", 1, seed)
        assert result["problems"] == [], f"{script.read_text()}\n{result['problems'][0]}"
        assert result["with_holdfast"] is None, f"{script.read_text()}\n{result['with_holdfast']}"
        assert result["kills"] >= 1, result

    composed()


if __name__ == "__main__":
    prepare()
    place, wanted, number = sys.argv[1:]
    check_compositions(Path(place), int(wanted), int(number))
