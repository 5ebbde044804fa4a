"""Several process groups in one job: every rank gets its own weights back, or an error says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scenarios import play

SCRIPT = Path(__file__).with_name("groups_at_work.py")
# How many different weights the four ranks hold.
OWN = {
    "ddp_on_a_half": 2,
    "ddp_that_ignores_experts": 4,
    "fsdp_on_a_half": 4,
    "tp_on_a_half": 4,
    "stages": 4,
    "part_in_ddp": 4,
}
# Saved, restored as, by so many ranks.
REFUSED = (
    "ddp_on_a_half ddp_on_a_half 2",
    "ddp_on_a_half ddp_on_all 4",
    "fsdp_on_a_half ddp_on_all 4",
    "tp_on_a_half tp_on_a_half 2",
    "stages stages 2",
    "stages stages 6",
    "stages ddp_on_all 4",
    "ddp_that_ignores_experts ddp_that_ignores_experts 2",
)
FITTING = (
    "ddp_on_all ddp_on_all 2",
    "kept_equal_by_hand ddp_on_all 2",
    "kept_equal_by_hand kept_equal_by_hand 6",
    "tp_alike tp_alike 2",
)
UNEQUAL = "ddp_unequal ddp_unequal 4"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    asked = [*(f"{case} {case} 4" for case in OWN), *REFUSED, *FITTING, UNEQUAL]
    told = play("all", tmp_path_factory.mktemp("groups"), *asked, script=SCRIPT)
    assert all(
        answer for answers in [*told["saved"].values(), *told["again"].values()] for answer in answers
    ), told["errors"]
    return told


@pytest.mark.parametrize("case", OWN)
def test_every_rank_gets_its_own_weights_back(case: str, found: dict[str, Any]) -> None:
    saved = [answer["after"] for answer in found["saved"][case]]
    weights = [{name: v for name, v in held.items() if "weight" in name} for held in saved]
    assert len({repr(w) for w in weights}) == OWN[case], "the ranks must hold different weights to begin with"
    for rank, answer in enumerate(found["again"][f"{case} {case} 4"]):
        assert answer.get("before") == saved[rank], f"rank {rank}: {answer.get('error')}"
        assert answer["step"] == 2


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_rank_can_tell_apart_is_refused(what: str, found: dict[str, Any]) -> None:
    for answer in found["again"][what]:
        assert answer.get("error", "").startswith("IncompatibleState"), answer
    assert any("start with 4 ranks in the same groups" in answer["error"] for answer in found["again"][what])


@pytest.mark.parametrize("what", FITTING)
def test_what_all_groups_hold_alike_fits_any_number_of_ranks(what: str, found: dict[str, Any]) -> None:
    saved = found["saved"][what.split()[0]][0]["after"]
    for answer in found["again"][what]:
        assert "error" not in answer, answer
        assert answer["step"] == 2
        assert {n.removeprefix("module."): v for n, v in answer["before"].items() if "expert" in n} == {
            n.removeprefix("module."): v for n, v in saved.items() if "expert" in n
        }


def test_ddp_ranks_that_are_not_equal_are_not_saved_as_equal(found: dict[str, Any]) -> None:
    for answer in found["saved"]["ddp_unequal"]:
        assert (
            "hold different values in parameters that DistributedDataParallel is to keep equal"
            in answer["error"]
        )
