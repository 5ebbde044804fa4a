"""A training loop without training: made-up step and save times drive a real policy by its real calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.policy.debt import DebtPolicy
from holdfast.policy.observation import Observation, SaveCost


@dataclass(frozen=True)
class Save:
    step: int
    at: float
    reason: str


@dataclass
class Pretend:
    """`slowdown` is the share of throughput lost while a persist runs. Costs may be changed between runs."""

    policy: DebtPolicy
    step_seconds: float = 0.25
    stall: float = 0.5
    persist: float = 5.5
    slowdown: float = 0.0
    jitter: Callable[[], float] = lambda: 1.0
    loss: Callable[[float], float] | None = None
    epoch_steps: int = 0
    deadline: float | None = None
    fails: bool = False
    now: float = 1000.0  # monotonic clocks do not start at zero
    step: int = 0
    saves: list[Save] = field(default_factory=list)
    overhead: float = 0.0
    _in_flight: tuple[float, int] | None = None

    def run(self, steps: int = 0, *, seconds: float = 0.0, notice: str | None = None) -> list[Save]:
        """Train on, and return the saves of this stretch."""
        first, last_step, end = len(self.saves), self.step + steps, self.now + seconds
        while self.step < last_step or self.now < end:
            self._one_step(notice)
        return self.saves[first:]

    def _one_step(self, notice: str | None) -> None:
        policy = self.policy
        undisturbed = self.step_seconds * self.jitter()
        length = undisturbed / (1 - self.slowdown) if self._in_flight else undisturbed
        self.overhead += length - undisturbed
        self.now += length
        self.step += 1
        if self._in_flight and self.now >= self._in_flight[0]:
            _, step = self._in_flight
            self._in_flight = None
            if self.fails:
                policy.save_failed(self.now, step)
            else:
                policy.save_committed(self.now, SaveCost(step, self.stall, self.persist, 10**9))
        ended = bool(self.epoch_steps) and self.step % self.epoch_steps == 0
        at, loss = self.now, self.loss
        decision = policy.decide(
            Observation(
                now=self.now,
                step=self.step,
                epoch=self.step // self.epoch_steps if self.epoch_steps else 0,
                epoch_ended=ended,
                save_in_flight=self._in_flight is not None,
                deadline=self.deadline,
                loss=None if loss is None else lambda: loss(at),
                notice=notice,
            )
        )
        assert decision.reason
        if decision.save and self._in_flight is None:
            self.saves.append(Save(self.step, self.now, decision.reason))
            self.now += self.stall
            self.overhead += self.stall
            policy.save_started(self.now, self.step)
            self._in_flight = (self.now + self.persist, self.step)


def gaps(saves: list[Save]) -> list[int]:
    """Steps between consecutive saves."""
    return [after.step - before.step for before, after in pairwise(saves)]
