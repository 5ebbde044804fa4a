"""On which device a restored tensor of a user's object lies. The meta device stands for an accelerator."""

from __future__ import annotations

from typing import Any

import torch
from round_trip import Holder

from holdfast.capture.torch_leaves import leaf_from_bytes
from holdfast.capture.torch_object import TrackedObject
from holdfast.capture.torch_place import SAVED_FROM, destination, put_in_place

META = torch.device("meta")


def test_the_tensor_that_stands_there_now_decides() -> None:
    assert destination(None, torch.empty(2, device=META)) == META
    assert destination("meta", torch.empty(2)) == torch.device("cpu")


def test_else_the_device_that_it_was_saved_from_if_it_exists() -> None:
    assert destination("meta", None) == META
    assert destination("meta", "no tensor") == META
    assert destination("cuda:7", None) in (torch.device("cpu"), torch.device("cuda"), torch.device("cuda:7"))
    assert destination(None, None) is None


def test_what_was_saved_says_where_and_the_mark_does_not_stay() -> None:
    raw = torch.zeros(8, dtype=torch.uint8)
    leaf = leaf_from_bytes({"name": "x", "device": "meta"}, "F32", (2,), raw)
    assert getattr(leaf, SAVED_FROM) == "meta"
    placed = put_in_place({"x": leaf}, lambda: None)["x"]
    assert not hasattr(placed, SAVED_FROM)


def test_containers_ties_and_values_stay_as_they_were() -> None:
    shared = torch.ones(2)
    state: dict[str, Any] = {"a": shared, "b": [shared, 1, (shared, None)], "c": {"d": torch.zeros(1)}}
    seen = {"a": torch.zeros(2), "b": [torch.zeros(2)], "c": 5}
    back = put_in_place(state, lambda: seen)
    assert back["a"] is back["b"][0] is back["b"][2][0]
    assert back["b"][1:2] == [1]
    assert back["c"]["d"].item() == 0


def test_an_object_that_cannot_give_a_state_yet_is_restored() -> None:
    class Later(Holder):
        def state_dict(self) -> Any:
            raise RuntimeError("not built yet")

    holder = Later()
    TrackedObject("it", holder).apply({"x": torch.ones(1)})
    assert holder.state["x"].item() == 1
