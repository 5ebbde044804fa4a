"""Every decision to save can be made again from the journal, to the bit, by anybody."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.events import Event, LastSign, RunStarted, SaveDecided
from holdfast.policy.made_again import differences
from holdfast.stores.journal import read_events
from holdfast.testing import FakeClock


class Died(Exception):
    pass


def life(path: Path, clock: FakeClock, steps: int, *, dies: bool, **when: Any) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Run(path, clock=clock, model=model, optimizer=optimizer, **when) as run:
        for _ in range(steps):
            clock.advance(0.05)
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            run.end_step()
            run._session.saves.saver.wait_for_all()  # type: ignore[union-attr]
        if dies:
            raise Died


def journal(path: Path, **when: Any) -> list[Event]:
    clock = FakeClock()
    for _ in range(2):
        with pytest.raises(Died):
            life(path, clock, 300, dies=True, **when)
        clock.advance(3.0)
    life(path, clock, 300, dies=False, **when)
    return read_events(path)


@pytest.mark.parametrize(
    "when",
    [
        {},
        pytest.param({"mtbf": "10 min"}, marks=pytest.mark.torture),
        pytest.param({"max_loss": "4 s"}, marks=pytest.mark.torture),
        {"policy": "young", "mtbf": "1 h", "budget": "1%"},
    ],
)
def test_every_decision_follows_from_the_journal(tmp_path: Path, when: dict[str, Any]) -> None:
    events = journal(tmp_path / "run", **when)
    made, differ = differences(events)
    assert differ == []
    assert made == sum(isinstance(event, SaveDecided) for event in events) > 6
    reasons = [event.reason for event in events if isinstance(event, SaveDecided)]
    assert any(reason.startswith(("expected loss", "max_loss")) for reason in reasons)


def test_a_number_that_was_changed_is_noticed(tmp_path: Path) -> None:
    events = journal(tmp_path / "run")
    at = next(i for i, event in enumerate(events) if isinstance(event, SaveDecided))
    event = events[at]
    assert isinstance(event, SaveDecided)
    assert event.numbers is not None
    events[at] = replace(event, numbers={**event.numbers, "rate": event.numbers["rate"] * (1 + 2e-16)})  # type: ignore[operator]
    assert len(differences(events)[1]) == 1


def test_another_process_comes_to_the_same_bits(tmp_path: Path) -> None:
    journal(tmp_path / "run")
    program = (
        "import sys\n"
        "from holdfast.policy.made_again import differences\n"
        "from holdfast.stores.journal import read_events\n"
        "print(differences(read_events(sys.argv[1])))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    made = sum(isinstance(event, SaveDecided) for event in read_events(tmp_path / "run"))
    assert done.stdout.strip() == f"({made}, [])"


def test_a_journal_of_an_earlier_version_says_nothing_and_is_no_error() -> None:
    old = RunStarted(time=0.0, step=0, host="h", pid=1, writer_epoch=1)
    decided = SaveDecided(time=1.0, step=50, reason="first save")
    assert differences([old, decided, LastSign(time=2.0, step=60)]) == (0, [])
