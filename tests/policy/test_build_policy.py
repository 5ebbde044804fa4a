"""The user's words: what is accepted, and the sentence that explains each refusal."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import SetupError
from holdfast.policy.build import RULES, build_policy
from holdfast.policy.convergence import ConvergenceSettings
from holdfast.policy.profile import Profile, profile_key


@pytest.mark.parametrize("name", list(RULES))
def test_every_name_builds_a_setting_of_the_same_engine(name: str) -> None:
    policy = build_policy(name)
    assert type(policy).__name__ == "DebtPolicy"
    assert policy.settings.name == name


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"policy": "often"}, "there is no policy 'often'"),
        ({"policy": "young", "every": "5 min"}, "would have nothing to decide"),
        ({"policy": "checkfreq", "mtbf": "3 h"}, "no use for mtbf"),
        ({"every": "10 min", "max_loss": "5 min"}, "cannot keep a max_loss"),
        ({"every": "0 steps"}, "cannot save every"),
        ({"every": "1.5 epochs"}, "cannot save every"),
        ({"budget": "300%"}, "between 0 and 1"),
        ({"max_loss": 0}, "max_loss must be positive"),
        ({"mtbf": -1}, "mtbf must be positive"),
        ({"convergence": ConvergenceSettings()}, "mean nothing to policy='auto'"),
        (
            {"policy": "convergence", "mtbf": "1 h", "convergence": ConvergenceSettings(rate=1e-4)},
            "give one of the two",
        ),
    ],
)
def test_contradictions_are_refused_with_the_sentence_that_explains(
    words: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SetupError, match=sentence):
        build_policy(**words)


def test_settings_are_read_as_people_write_them() -> None:
    settings = build_policy(budget="5%", max_loss="10 min").settings
    assert (settings.budget, settings.max_loss) == (0.05, 600.0)


def test_the_profile_key_changes_with_every_part_of_the_setting() -> None:
    base: dict[str, Any] = {
        "hardware": "H100", "storage": "lustre", "world_size": 8, "dtype": "bf16", "state_bytes": 10**9
    }  # fmt: skip
    changed = [
        {"hardware": "A100"},
        {"storage": "nvme"},
        {"world_size": 16},
        {"dtype": "f32"},
        {"state_bytes": 2 * 10**9},
    ]
    keys = {profile_key(**base)} | {profile_key(**{**base, **change}) for change in changed}
    assert len(keys) == 6
    assert profile_key(**{**base, "state_bytes": 10**9 + 8}) == profile_key(**base)


def test_a_profile_survives_its_dictionary() -> None:
    profile = Profile(0.25, 0.5, 0.7, 6.0, 12.0, 10**9, 5)
    assert Profile.from_dict(profile.to_dict()) == profile
    assert profile.interference == pytest.approx(0.2 / 6)
