"""What is believed about how often this job fails: a weight for every rate that there could be.

Before anything is known, a failure every 20 seconds is as likely as one a year, and so is every factor in
between: spot machines, preempted partitions, crash loops and healthy clusters are all in there. Every failure
and every second survived moves the weights. Pure and deterministic: no clock, no chance, and the same spells
give the same bits.

The mean of the *rate* is what belongs into the interval, because expected loss is linear in it; the mean of
the MTBF would be too hopeful.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import mul

from holdfast.policy.failures import FailureHistory
from holdfast.units import format_seconds

FASTEST_SECONDS = 20.0
SLOWEST_SECONDS = 365.25 * 86400.0
# 0.2 e-folds apart: finer would change no interval by a thousandth.
POINTS = 72
# A failure may be the first of many, or the last. So much of the weight starts anew after each. Then a crash
# loop after a quiet month is believed at its second failure, one that has passed is forgotten within minutes,
# and the first minutes after a failure count as dangerous, as they are in all public traces. Where the rate
# never changes it costs 1 % of the overhead.
STARTS_ANEW = 0.03
# Spells that are mentioned in words.
MENTIONED = 5

_SPACING = math.log(SLOWEST_SECONDS / FASTEST_SECONDS) / (POINTS - 1)
RATES = tuple(math.exp(i * _SPACING) / SLOWEST_SECONDS for i in range(POINTS))

_FALLS = tuple(-rate for rate in RATES)


@dataclass(frozen=True)
class Hint:
    """What somebody knows before the first failure: about one in `mtbf` seconds, right to a factor `within`.

    `trust` is the weight it gets; what is left stays with all rates. `why` completes "expecting … because".
    """

    mtbf: float
    why: str
    trust: float = 0.8
    within: float = 3.0


@dataclass(frozen=True)
class Belief:
    """A weight for each of `RATES`. `fact` is the MTBF where it is known and not learned."""

    weights: tuple[float, ...]
    anew: tuple[float, ...]
    fact: float | None = None
    hints: tuple[Hint, ...] = ()
    seen: int = 0
    lived: float = 0.0
    # Lengths of the last spells that ended in a failure, newest last.
    recent: tuple[float, ...] = ()
    _asked: dict[float, float] = field(default_factory=dict, compare=False, repr=False)

    def mean(self, running_for: float = 0.0) -> float:
        """Failures per second, given that the present spell has lasted `running_for` seconds so far."""
        if self.fact is not None:
            return 1 / self.fact
        age = rounded_age(running_for)
        known = self._asked.get(age)
        if known is None:
            left = list(map(mul, self.weights, map(math.exp, [fall * age for fall in _FALLS])))
            known = sum(map(mul, left, RATES)) / sum(left)
            self._asked.clear()  # ages only grow
            self._asked[age] = known
        return known

    def after_spell(self, seconds: float, *, failed: bool) -> Belief:
        """The belief after one more spell."""
        left = [w * math.exp(-rate * seconds) for w, rate in zip(self.weights, RATES, strict=True)]
        if failed:
            left = [w * rate for w, rate in zip(left, RATES, strict=True)]
        weights = scaled(left)
        if failed:
            weights = tuple(
                (1 - STARTS_ANEW) * w + STARTS_ANEW * new for w, new in zip(weights, self.anew, strict=True)
            )
        return replace(
            self,
            weights=weights,
            seen=self.seen + failed,
            lived=self.lived + seconds,
            recent=(*self.recent, seconds)[-MENTIONED:] if failed else self.recent,
            _asked={},
        )

    def after(self, history: FailureHistory) -> Belief:
        """The belief after everything in the journal. Time when the job was down is no evidence."""
        belief = self
        for spell in history.spells:
            if spell.ended != "running":
                belief = belief.after_spell(spell.end - spell.start, failed=spell.ended == "failure")
        return belief

    def words(self, running_for: float = 0.0) -> str:
        """ "4 failures in 2 min: expecting one about every 30 s"."""
        mtbf = format_seconds(1 / self.mean(running_for))
        if self.fact is not None:
            return f"MTBF {mtbf} as given"
        if self.seen == 0:
            lived = self.lived + running_for
            known = f"no failure in {format_seconds(lived)}" if lived >= 1 else "no failure seen"
            known = ", ".join([*(hint.why for hint in self.hints), known])
        else:
            many, which = len(self.recent), "" if self.seen <= len(self.recent) else "last "
            span = format_seconds(sum(self.recent))
            known = f"{which}{many} failure{'s' if many != 1 else ''} in {span}"
        return f"{known}: expecting one about every {mtbf}"


def rounded_age(seconds: float) -> float:
    """The middle of the eighth of an octave that this age is in: the belief changes slowly, and asking it for
    every instant would cost more than the answer is worth."""
    if seconds < 1.0:
        return 0.0
    share, power = math.frexp(seconds)
    return math.ldexp((math.floor(share * 16) + 0.5) / 16, power)


def scaled(weights: Sequence[float]) -> tuple[float, ...]:
    """So that they add up to one. Where all have vanished, the slowest rate is what is left."""
    total = sum(weights)
    if not total > 0:
        return (1.0, *([0.0] * (len(weights) - 1)))
    return tuple(w / total for w in weights)


def belief_from(hints: Sequence[Hint] = (), *, fact: float | None = None) -> Belief:
    """All rates alike, narrowed by what is known. `fact` fixes it."""
    anew = (1 / POINTS,) * POINTS
    weights = list(anew)
    for hint in hints:
        width = math.log(hint.within)
        centre = min(max(hint.mtbf, FASTEST_SECONDS), SLOWEST_SECONDS)
        bump = scaled([math.exp(-0.5 * (math.log(rate * centre) / width) ** 2) for rate in RATES])
        weights = [(1 - hint.trust) * w + hint.trust * b for w, b in zip(weights, bump, strict=True)]
    # What starts anew after a failure knows nothing: a guess that was wrong must not come back each time.
    return Belief(scaled(weights), anew, fact=fact, hints=tuple(hints))
