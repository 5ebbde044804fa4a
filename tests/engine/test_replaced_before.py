"""State that was replaced before a boundary belongs to it: such a save is taken, and taken whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import holdfast


def trained(width: int = 8) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(width)
    model = torch.nn.Linear(width, width)
    opt = torch.optim.AdamW(model.parameters())
    return model, opt


def one_step(model: torch.nn.Module, opt: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 8)).sum().backward()
    opt.step()
    opt.zero_grad()


@pytest.mark.parametrize("what", ["optimizer", "model"])
def test_a_save_after_load_state_dict_holds_what_was_loaded(tmp_path: Path, what: str) -> None:
    model, opt = trained()
    with holdfast.Run(tmp_path, model=model, optimizer=opt, every="1000 steps") as run:
        for _ in range(3):
            one_step(model, opt)
            run.end_step()
            run.save_now().wait()
        if what == "optimizer":
            opt.load_state_dict(opt.state_dict())
            opt.state[model.weight]["exp_avg"].fill_(7.0)
        else:
            model.load_state_dict({k: v.clone() + 1 for k, v in model.state_dict().items()}, assign=True)
        one = run.save_now("after loading")
        assert one.wait()
        expected = {k: v.clone() for k, v in model.state_dict().items()}
    again, opt_again = trained()
    holdfast.restore(tmp_path, into={"model": again, "optimizer": opt_again})
    for name, value in expected.items():
        assert torch.equal(again.state_dict()[name], value)
    if what == "optimizer":
        assert (opt_again.state[again.weight]["exp_avg"] == 7.0).all()


def test_the_last_save_is_taken_even_if_a_moment_was_replaced(tmp_path: Path) -> None:
    model, opt = trained()
    with holdfast.Run(tmp_path, model=model, optimizer=opt, every="1000 steps") as run:
        for _ in range(3):
            one_step(model, opt)
            run.end_step()
            run.save_now().wait()
        one_step(model, opt)
        run.end_step()
        opt.state[model.bias]["exp_avg"] = torch.full_like(model.bias, 3.0)
    assert holdfast.checkpoints(tmp_path)[0].step == 4
    again, opt_again = trained()
    holdfast.restore(tmp_path, into={"model": again, "optimizer": opt_again})
    assert (opt_again.state[again.bias]["exp_avg"] == 3.0).all()
