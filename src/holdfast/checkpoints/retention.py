"""Which checkpoints are worth keeping, and why: a pure choice among manifests. Deletes nothing.

The floor of two stands above every setting: the newest may turn out damaged when it is needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import SetupError
from holdfast.format.manifest import Manifest
from holdfast.format.names import CheckpointName

FLOOR = 2
EPOCH_END = "epoch-end"
# Saved while the loss was not finite, or with NaN among the weights.
NOT_FINITE = "not-finite"
_HINT = 'write it like "latest 3, every 1000 steps, lowest 2 of val_loss, epoch ends"'
_LATEST = re.compile(r"(?:latest\s+)?([0-9]+)")
_EVERY = re.compile(r"every\s+([0-9]+)\s+steps?")
_RANKED = re.compile(r"(lowest|highest)(?:\s+([0-9]+))?\s+of\s+(\S+)")
_BEST = re.compile(r"best(?:\s+([0-9]+))?\s+of\s+([+-]?)(\S+)")


@dataclass(frozen=True)
class Best:
    """The `count` best by a metric of the manifest: "min" for a loss, "max" for an accuracy."""

    metric: str
    mode: Literal["min", "max"] = "min"
    count: int = 1


@dataclass(frozen=True)
class Retention:
    """What to keep. The rules add up: a checkpoint goes only if none of them wants it.

    `every_steps` keeps the first checkpoint of each stretch of that many steps.
    """

    latest: int = FLOOR
    every_steps: int | None = None
    best: Best | None = None
    epoch_ends: bool = False

    def __post_init__(self) -> None:
        if self.latest < FLOOR:
            raise SetupError(
                f"keep={self.latest} is not safe: if the only checkpoint proves damaged, the run is lost",
                hint=f"keep at least {FLOOR}",
            )
        if (self.every_steps is not None and self.every_steps < 1) or (self.best and self.best.count < 1):
            raise SetupError(
                "a retention rule that keeps nothing", hint="use numbers from 1 up, or leave it out"
            )


def parse_keep(value: int | str | Retention) -> Retention:
    """The user's `keep=`: a number, a Retention, or words.

    >>> parse_keep("latest 3, every 1000 steps, lowest 2 of val_loss, epoch ends")
    Retention(latest=3, every_steps=1000, best=Best(metric='val_loss', mode='min', count=2), epoch_ends=True)
    """
    if isinstance(value, Retention):
        return value
    if type(value) is int:
        return Retention(latest=value)
    if not isinstance(value, str):
        raise SetupError(f"cannot read keep={value!r}", hint=_HINT)
    rules: dict[str, int | bool | Best] = {}
    for part in value.split(","):
        rule, setting = _parse_rule(part.strip())
        if rule in rules:
            raise SetupError(f"keep={value!r} says {rule!r} twice", hint=_HINT)
        rules[rule] = setting
    return Retention(**rules)  # type: ignore[arg-type]


def _parse_rule(text: str) -> tuple[str, int | bool | Best]:
    if match := _LATEST.fullmatch(text):
        return "latest", int(match[1])
    if match := _EVERY.fullmatch(text):
        return "every_steps", int(match[1])
    if match := _RANKED.fullmatch(text):
        return "best", Best(match[3], "min" if match[1] == "lowest" else "max", int(match[2] or 1))
    if match := _BEST.fullmatch(text):
        if not match[2]:
            count, metric = f" {match[1]}" if match[1] else "", match[3]
            raise SetupError(
                f"{text!r}: is less of {metric} better, or more?",
                hint=f'write "lowest{count} of {metric}" or "highest{count} of {metric}"',
            )
        return "best", Best(match[3], "min" if match[2] == "-" else "max", int(match[1] or 1))
    if text in ("epoch ends", "epoch end"):
        return "epoch_ends", True
    raise SetupError(f"cannot read {text!r} as a rule of what to keep", hint=_HINT)


def select(manifests: Sequence[Manifest], retention: Retention) -> dict[CheckpointName, str]:
    """The checkpoints to keep, each with the first reason that applies."""
    newest_first = sorted(manifests, key=lambda m: m.name, reverse=True)
    reasons: dict[CheckpointName, str] = {}
    for manifest in newest_first[: retention.latest]:
        reasons.setdefault(manifest.name, f"among the latest {retention.latest}")
    for name, why in lasting(newest_first, retention).items():
        reasons.setdefault(name, why)
    for manifest in newest_first:
        if manifest.step > newest_first[0].step:
            # Passed over by a later writer. Until that one has got as far, it is work that exists only here.
            reasons.setdefault(manifest.name, "further in training than the newest is")
    return reasons


def lasting(manifests: Sequence[Manifest], retention: Retention) -> dict[CheckpointName, str]:
    """Those that a rule wants though they are not the latest: they must reach a tier that lasts."""
    newest_first = sorted(manifests, key=lambda m: m.name, reverse=True)
    reasons: dict[CheckpointName, str] = {}
    for manifest in newest_first:
        if manifest.keep is not None:
            reasons.setdefault(manifest.name, f"kept for ever: {manifest.keep or 'by request'}")
        if retention.epoch_ends and EPOCH_END in manifest.tags:
            reasons.setdefault(manifest.name, "end of an epoch")
    if newest_first and NOT_FINITE in newest_first[0].tags:
        # A training that has diverged goes on saving, and would push out all that it could go back to.
        for manifest in [m for m in newest_first if NOT_FINITE not in m.tags][:1]:
            reasons.setdefault(manifest.name, "the newest from before the loss stopped being finite")
    for name in _first_of_each_stretch(newest_first, retention.every_steps):
        reasons.setdefault(name, f"first within {retention.every_steps} steps")
    for name in _best(newest_first, retention.best):
        reasons.setdefault(name, f"among the best {retention.best.count} by {retention.best.metric}")  # type: ignore[union-attr]
    return reasons


def _first_of_each_stretch(newest_first: Sequence[Manifest], every: int | None) -> list[CheckpointName]:
    if every is None:
        return []
    # The oldest of a stretch wins, so that a choice once made is never undone by a later save.
    first = {manifest.step // every: manifest.name for manifest in newest_first}
    return list(first.values())


def _best(newest_first: Sequence[Manifest], best: Best | None) -> list[CheckpointName]:
    if best is None:
        return []
    # Of equals the older one: a choice once made is not undone by a later save that is no better. Of a step
    # that was saved twice (as the best, and at the end of its epoch) one: it would take another's place.
    scored = sorted(
        ((score, m.name) for m in newest_first if (score := _score(m.metrics, best)) is not None),
        reverse=True,
    )
    first = {(score, name.step): (score, name) for score, name in scored}
    return [name for _, name in sorted(first.values())[: best.count]]


def would_be_among_best(metrics: Mapping[str, float], best: Best, others: Iterable[Manifest]) -> bool:
    """Whether a checkpoint with these metrics would be kept as one of the best, beside `others`."""
    mine = _score(metrics, best)
    if mine is None:
        return False
    theirs = {(_score(other.metrics, best), other.step) for other in others}
    return sum(score is not None and score <= mine for score, _ in theirs) < best.count


def _score(metrics: Mapping[str, float], best: Best) -> float | None:
    """The less the better; None where there is no number."""
    value = metrics.get(best.metric, math.nan)
    return (value if best.mode == "min" else -value) if math.isfinite(value) else None
