"""Why the policy does what it does, for people: the numbers that went in and what came out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.units import format_seconds


@dataclass(frozen=True)
class Explanation:
    """Seconds throughout. `limit` names the bound that sets the interval, or "none"; shares are of run time.

    `interval_seconds` is None while nothing can be said, as before the first save or for a rhythm in steps.
    `conflict` says which two wishes cannot both be met, and which one wins.
    """

    policy: str
    rule: str
    limit: str
    interval_seconds: float | None
    next_save_in: float | None
    mtbf_seconds: float | None
    failures_seen: int
    expects: str
    save_cost_seconds: float | None
    stall_seconds: float | None
    persist_seconds: float | None
    step_seconds: float | None
    budget: float
    stall_share: float | None
    rework_share: float | None
    saves_measured: int
    worth_factor: float = 1.0
    conflict: str | None = None

    def line(self) -> str:
        """One line: next save in 3 min 31 s: 7 failures in 21 h: expecting one about every 3 h, …"""
        facts: list[str] = []
        if self.mtbf_seconds is not None:
            facts.append(self.expects)
        if self.save_cost_seconds is None:
            facts.append("cost of a save not measured yet")
        else:
            facts.append(f"save costs {format_seconds(self.save_cost_seconds)}")
        if self.worth_factor != 1.0:
            facts.append(f"progress weighs {self.worth_factor:.3g}x")
        parts = [f"{self._when()}: {', '.join(facts)}", f"limit in force: {self.limit}"]
        if self.stall_share is not None and self.rework_share is not None:
            parts.append(f"stall {_percent(self.stall_share)} / rework {_percent(self.rework_share)}")
        if self.conflict:
            parts.append(self.conflict)
        return "; ".join(parts)

    def _when(self) -> str:
        if self.next_save_in is None or math.isinf(self.next_save_in):
            return self.rule
        if self.next_save_in <= 0:
            return "save due now"
        return f"next save in {format_seconds(self.next_save_in)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-5 else "under 0.001 %"
