"""From the words a user writes to a policy. Every named policy is a setting of the one engine in `debt`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import SetupError
from holdfast.policy.belief import Hint, belief_from
from holdfast.policy.bounds import Rule
from holdfast.policy.convergence import ConvergenceSettings
from holdfast.policy.debt import DebtPolicy, DebtSettings
from holdfast.policy.failures import FailureHistory
from holdfast.policy.profile import Profile
from holdfast.units import Every, format_seconds, parse_every, parse_seconds, parse_share

RULES: dict[str, Rule] = {
    "auto": "exact",
    "checkfreq": "budget",
    "young": "young",
    "daly": "daly",
    "availability": "availability",
    "convergence": "exact",
}


def build_policy(
    policy: str = "auto",
    *,
    budget: str | float = 0.03,
    every: str | int | Every | None = None,
    max_loss: str | float | None = None,
    mtbf: str | float | None = None,
    hints: Sequence[Hint] = (),
    history: FailureHistory | None = None,
    profile: Profile | None = None,
    convergence: ConvergenceSettings | None = None,
    epoch_ends: bool = False,
    setting: str = "",
) -> DebtPolicy:
    """One policy from the user's settings.

    `policy` is "auto" (expected loss against price, failure rate learned), "checkfreq" (as often as the
    budget allows), "young", "daly", "availability" (those formulas), or "convergence" (denser while the loss
    falls fast). `budget` caps the share of time that saves may take; `max_loss` is the most training time a
    failure may cost; `mtbf` is the mean time between failures of the whole job. "auto" takes it as a first
    guess and learns on; "young", "daly" and "availability" take it as a fact. `hints` say what is known of
    the failure rate from elsewhere. `every` fixes the rhythm.
    `epoch_ends` forces a save at the end of every epoch, whatever it costs. `setting` (see `profile_key`)
    names what costs depend on; costs kept from another setting are measured again.
    """
    if policy not in RULES:
        names = ", ".join(f'"{name}"' for name in RULES)
        raise SetupError(f"there is no policy {policy!r}", hint=f"use one of {names}, or every=")
    share = parse_share(budget)
    rhythm = None if every is None else parse_every(every)
    promise = None if max_loss is None else parse_seconds(max_loss)
    between = None if mtbf is None else parse_seconds(mtbf)
    if promise is not None and promise <= 0:
        raise SetupError(f"max_loss must be positive, not {max_loss!r}", hint='write it as "10 min"')
    if between is not None and between <= 0:
        raise SetupError(f"mtbf must be positive, not {mtbf!r}", hint='write it as "8 h"')
    _refuse_contradictions(policy, rhythm, promise, between, convergence)
    if policy == "convergence" and convergence is None:
        convergence = ConvergenceSettings()
    is_fact = policy in ("young", "daly", "availability")
    if between is not None:  # who gives a number knows more than what was guessed from the surroundings
        hints = () if is_fact else (Hint(between, f"mtbf={format_seconds(between)} given"),)
    belief = belief_from(hints, fact=between if is_fact else None)
    if history is not None:
        belief = belief.after(history)
    settings = DebtSettings(
        name=policy if rhythm is None else "every",
        rule=RULES[policy],
        budget=share,
        every=rhythm,
        max_loss=promise,
        convergence=convergence,
        epoch_ends=epoch_ends,
        setting=setting,
    )
    return DebtPolicy(settings, belief, profile)


def _refuse_contradictions(
    policy: str,
    every: Every | None,
    max_loss: float | None,
    mtbf: float | None,
    convergence: ConvergenceSettings | None,
) -> None:
    if every is not None and policy != "auto":
        raise SetupError(
            f"every= fixes when to save, so policy={policy!r} would have nothing to decide",
            hint="give one of the two",
        )
    if every is not None and every.unit == "seconds" and max_loss is not None and max_loss < every.amount:
        raise SetupError(
            f"saving every {every.amount:g} s cannot keep a max_loss of {max_loss:g} s",
            hint="give max_loss alone, and the interval follows from it",
        )
    if policy == "checkfreq" and mtbf is not None:
        raise SetupError(
            'policy="checkfreq" saves as often as the budget allows and has no use for mtbf=',
            hint='use policy="auto" to weigh the failure rate as well',
        )
    if convergence is not None and policy != "convergence":
        raise SetupError(
            f"convergence settings mean nothing to policy={policy!r}", hint='use policy="convergence"'
        )
    if convergence is not None and convergence.rate is not None and mtbf is not None:
        raise SetupError(
            "mtbf= and the convergence settings' rate= both give the failure rate", hint="give one of the two"
        )
