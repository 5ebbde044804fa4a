"""What saves cost earlier runs in the same setting is what a new run starts from."""

from pathlib import Path

import pytest
import torch

from holdfast import Run
from holdfast.engine.earlier_costs import MOST_SETTINGS, costs_of_earlier_runs, remember_costs
from holdfast.policy.build import build_policy
from holdfast.policy.observation import Observation
from holdfast.policy.profile import Profile

MEASURED = Profile(step_seconds=0.1, stall_seconds=0.01, cost_seconds=0.02, persist_seconds=0.3, saves=7)


def trained(folder: Path, width: int, saves: int) -> Run:
    model = torch.nn.Linear(width, width)
    optimizer = torch.optim.AdamW(model.parameters())
    with Run(folder, model=model, optimizer=optimizer) as run:
        for _ in run.steps(saves):
            model(torch.randn(2, width)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.end_step()
            run.save_now().wait()
    return run


def test_a_new_run_starts_from_the_costs_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LEARN", "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = trained(tmp_path / "first", 64, 4).policy.profile
    assert first.cost_seconds is not None
    same, other = torch.nn.Linear(64, 64), torch.nn.Linear(512, 512)
    with Run(tmp_path / "second", model=same, optimizer=torch.optim.AdamW(same.parameters())) as run:
        assert run.policy.profile.cost_seconds == first.cost_seconds
        assert run.policy.profile.step_seconds is None, "the steps are this program's own"
    with Run(tmp_path / "third", model=other, optimizer=torch.optim.AdamW(other.parameters())) as run:
        assert run.policy.profile.cost_seconds is None, "another size is another setting"
    monkeypatch.setenv("HOLDFAST_LEARN", "off")
    with Run(tmp_path / "fourth", model=same, optimizer=torch.optim.AdamW(same.parameters())) as run:
        assert run.policy.profile.cost_seconds is None


def first_save(profile: Profile | None, mtbf: str, step: float) -> int:
    policy = build_policy("young", mtbf=mtbf, profile=profile)
    for number in range(1, 2000):
        if policy.decide(Observation(now=step * number, step=number, epoch=0)).save:
            return number
    raise AssertionError("it never saved")


def test_with_known_costs_the_first_save_comes_when_it_is_worth_its_price() -> None:
    dear = Profile(stall_seconds=20.0, cost_seconds=20.0, persist_seconds=60.0, saves=2)
    cheap = Profile(stall_seconds=0.001, cost_seconds=0.001, persist_seconds=0.02, saves=2)
    assert first_save(cheap, "10 min", 0.2) < first_save(None, "10 min", 0.2)
    assert first_save(dear, "1 h", 0.1) == 50, "the first save proves that saving works, whatever it costs"


def test_the_file_is_small_and_nothing_in_it_is_trusted(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    for i in range(MOST_SETTINGS + 3):
        remember_costs(environ, f"setting {i}", MEASURED, wall=float(i))
    assert costs_of_earlier_runs(environ, "setting 0") is None
    assert costs_of_earlier_runs(environ, f"setting {MOST_SETTINGS}") is not None
    remember_costs(environ, "cold", Profile(stall_seconds=1.0, cost_seconds=1.0, saves=1), wall=1e9)
    assert costs_of_earlier_runs(environ, "cold") is None
    file = next(tmp_path.rglob("costs.json"))
    for nonsense in ("", "[]", '{"version": 1, "settings": {"a": 1}}', '{"version": 1, "settings": []}'):
        file.write_text(nonsense)
        assert costs_of_earlier_runs(environ, "a") is None
    file.write_text('{"version": 1, "settings": {"a": {"at": 1, "profile": {"cost_seconds": "x"}}}}')
    assert costs_of_earlier_runs(environ, "a") is None
