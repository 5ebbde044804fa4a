"""The run looks at its loop and names what changes there and is not tracked; complete loops hear nothing."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [
        line
        for r in caplog.records
        if "does not track" in r.getMessage()
        for line in r.getMessage().split("\n")
    ]
    return [line.strip() for line in lines[1:] if line.startswith("  ") and "line " in line]


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, torch.optim.AdamW(model.parameters())


def step_on(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    loss = model(torch.randn(4, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


class Meter:
    def __init__(self) -> None:
        self.total = 0.0

    def add(self, value: float) -> None:
        self.total += value


def sums(run: Any, model: Any, optimizer: Any) -> None:
    total, history, meter = 0.0, [], Meter()
    for _ in run.steps(4):
        loss = step_on(model, optimizer)
        total += float(loss)
        history.append(float(loss))
        meter.add(float(loss))
        run.end_step(loss=loss)


def kept_sums(run: Any, model: Any, optimizer: Any) -> None:
    total = run.extras.get("total", 0.0)
    history = run.extras.setdefault("history", [])
    for _ in run.steps(4):
        loss = step_on(model, optimizer)
        total += float(loss)
        history.append(float(loss))
        run.extras["total"] = total
        run.end_step(loss=loss)


def remembered_sums(run: Any, model: Any, optimizer: Any) -> None:
    meter = Meter()
    kept = run.remember(meter=meter, total=0.0)
    for _ in run.steps(4):
        loss = step_on(model, optimizer)
        kept.total += float(loss)
        meter.add(float(loss))
        run.end_step(loss=loss)


def zipped(run: Any, model: Any, optimizer: Any) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2)
    both = zip(run.batches(loader, "a"), enumerate(run.batches(loader, "b")), strict=True)
    for _batch in both:
        run.end_step(loss=step_on(model, optimizer))


def generator(run: Any, model: Any, optimizer: Any) -> None:
    noise = torch.Generator().manual_seed(1)
    for _ in run.steps(4):
        torch.randn(2, generator=noise)
        run.end_step(loss=step_on(model, optimizer))


def bare_parameter(run: Any, model: Any, optimizer: Any) -> None:
    log_alpha = torch.zeros(1, requires_grad=True)
    alpha_opt = torch.optim.Adam([log_alpha])
    for _ in run.steps(4):
        alpha_opt.zero_grad()
        log_alpha.exp().sum().backward()
        alpha_opt.step()
        run.end_step(loss=step_on(model, optimizer))


def read_directly(run: Any, model: Any, optimizer: Any) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2)
    for _batch in loader:
        run.end_step(loss=step_on(model, optimizer))


def iterator(run: Any, model: Any, optimizer: Any) -> None:
    batches = iter(torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2))
    for _ in run.steps(4):
        next(batches)
        run.end_step(loss=step_on(model, optimizer))


class World:
    """As environments are: much of what moves in them nobody writes down."""

    def __init__(self) -> None:
        self.at, self.steps, self.returned = 0.0, 0, 0.0

    def move(self) -> float:
        self.at = 0.9 * self.at + 0.1
        self.steps += 1
        self.returned += self.at
        return self.at


def environment(run: Any, model: Any, optimizer: Any) -> None:
    env = World()
    for _ in run.steps(4):
        env.move()
        run.end_step(loss=step_on(model, optimizer))


def copied(run: Any, model: Any, optimizer: Any) -> None:
    kept = run.remember(sum=0.0, seen=[])
    total, seen, extras = kept.sum, list(kept.seen), run.extras
    for _ in run.steps(4):
        loss = step_on(model, optimizer)
        total += float(loss)
        seen.append(float(loss))
        kept.sum, kept.seen = total, list(seen)
        extras["newest"] = float(loss)
        run.end_step(loss=loss)


class Epochs(torch.utils.data.Sampler[int]):
    def __init__(self) -> None:
        self.epoch, self.noise = 0, torch.Generator()

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Any:
        self.epoch += 1
        return iter(torch.randperm(4, generator=self.noise).tolist())


def sampler_of_ones_own(run: Any, model: Any, optimizer: Any) -> None:
    sampler = Epochs()
    loader = torch.utils.data.DataLoader(torch.arange(8.0), sampler=sampler)
    for _ in run.epochs(2):
        for _batch in run.batches(loader):
            run.end_step(loss=step_on(model, optimizer))


@pytest.mark.parametrize(
    ("loop", "names"),
    [
        (environment, ["env"]), (copied, []), (sampler_of_ones_own, []),
        (sums, ["total", "history", "meter.total"]), (kept_sums, []), (remembered_sums, []), (zipped, []),
        (generator, ["noise"]),
        (bare_parameter, ["log_alpha", "alpha_opt"]), (read_directly, ["loader"]), (iterator, ["batches"]),
    ],
)  # fmt: skip
def test_what_the_loop_changes_and_nobody_tracks_is_named_with_its_line(
    loop: Callable[[Any, Any, Any], None], names: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = make()
    with (
        caplog.at_level(logging.WARNING, "holdfast"),
        holdfast.Run(tmp_path, model=model, optimizer=optimizer) as run,
    ):
        loop(run, model, optimizer)
    said = warned(caplog)
    assert sorted(line.split(" ")[0] for line in said) == sorted(names)
    source = Path(__file__).read_text().splitlines()
    for line in said:
        number = int(line.split("line ")[1].split(")")[0])
        assert line.split(" ")[0].split(".")[-1] in source[number - 1]


@pytest.mark.parametrize("looks", [True, False])
def test_an_optimizer_that_is_not_tracked_is_said_once(
    looks: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, forgotten = make()
    with (
        caplog.at_level(logging.WARNING, "holdfast"),
        holdfast.Run(tmp_path, model=model, check_loop=looks) as run,
    ):
        for _ in run.steps(8):
            run.end_step(loss=step_on(model, forgotten))
    told = [record.getMessage() for record in caplog.records if "AdamW" in record.getMessage()]
    assert len(told) == 1
    assert ("forgotten (AdamW" in told[0]) == looks
    assert "AdamW moves parameters of" in (tmp_path / "events.jsonl").read_text()


def test_one_setting_turns_it_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = make()
    with (
        caplog.at_level(logging.WARNING, "holdfast"),
        holdfast.Run(tmp_path, model=model, optimizer=optimizer, check_loop=False) as run,
    ):
        sums(run, model, optimizer)
    assert warned(caplog) == []


def test_what_a_model_keeps_outside_its_state_dict_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x)

    model = Counting(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        caplog.at_level(logging.WARNING, "holdfast"),
        holdfast.Run(tmp_path, model=model, optimizer=optimizer) as run,
    ):
        for _ in run.steps(4):
            run.end_step(loss=step_on(model, optimizer))
    assert [line.split(" ")[0] for line in warned(caplog)] == ["model.calls"]


def test_looking_runs_nothing_of_the_users(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Touchy:
        """A proxy, as ctypes.cdll and lazy imports are: asking it for a name has consequences."""

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

        def __repr__(self) -> str:
            raise RuntimeError("shown")

        def __hash__(self) -> int:
            raise RuntimeError("hashed")

        def __len__(self) -> int:
            raise RuntimeError("measured")

    proxy, several, model_and_optimizer = Touchy(), [Touchy()], make()
    model, optimizer = model_and_optimizer
    with (
        caplog.at_level(logging.WARNING, "holdfast"),
        holdfast.Run(tmp_path, model=model, optimizer=optimizer) as run,
    ):
        for _ in run.steps(4):
            several.append(proxy)
            run.end_step(loss=step_on(model, optimizer))
    assert [line.split(" ")[0] for line in warned(caplog)] == ["several"]
    assert "could not look" not in caplog.text


def test_looking_keeps_no_batch_alive(tmp_path: Path) -> None:
    """Python keeps a copy of a frame's names once somebody asked for them; what it held must be let go."""
    import gc
    import weakref

    model, optimizer = make()
    alive: list[Any] = []
    with holdfast.Run(tmp_path, model=model, optimizer=optimizer) as run:
        for step in run.steps(12):
            activations = model(torch.randn(4, 3))
            alive.append(weakref.ref(activations))
            activations.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.end_step()
            if step > 6:
                del activations
                gc.collect()
                assert sum(ref() is not None for ref in alive) == 0
