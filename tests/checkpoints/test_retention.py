"""What is kept, and why: the pure choice, and how users write it."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoints.retention import (
    NOT_FINITE,
    Best,
    Retention,
    parse_keep,
    select,
    would_be_among_best,
)
from holdfast.errors import SetupError
from holdfast.format.manifest import Manifest


def manifest(step: int, epoch: int = 1, **more: Any) -> Manifest:
    said: dict[str, Any] = {
        "parent": None, "created": "", "reason": "", "files": (), "nonce": f"{step:08x}"
    }  # fmt: skip
    store = "01234567-89ab-cdef-0123-456789abcdef"
    return Manifest(store=store, writer_epoch=epoch, step=step, **{**said, **more})


def kept(manifests: list[Manifest], retention: Retention) -> list[int]:
    return sorted(name.step for name in select(manifests, retention))


def test_the_latest_are_the_latest_by_history_not_by_step() -> None:
    history = [manifest(900), manifest(901), manifest(10, epoch=2), manifest(901, epoch=2)]
    assert kept(history, Retention(latest=2)) == [10, 901]
    assert kept(history, Retention(latest=3)) == [10, 901, 901]


def test_what_is_further_in_training_than_the_newest_stays() -> None:
    history = [manifest(800), manifest(900), manifest(10, epoch=2), manifest(20, epoch=2)]
    assert kept(history, Retention(latest=2)) == [10, 20, 800, 900]
    assert kept([*history, manifest(850, epoch=2)], Retention(latest=2)) == [20, 850, 900]


def test_one_of_each_stretch_stays() -> None:
    history = [manifest(step) for step in range(0, 1000, 70)]
    assert kept(history, Retention(every_steps=250)) == [0, 280, 560, 770, 910, 980]


@given(st.lists(st.integers(0, 5000), min_size=1, unique=True), st.integers(1, 900))
def test_a_stretch_once_chosen_keeps_its_choice_as_training_goes_on(steps: list[int], every: int) -> None:
    retention = Retention(latest=2, every_steps=every)
    alive: list[Manifest] = []
    firsts: dict[int, int] = {}
    for step in sorted(steps):
        alive.append(manifest(step))
        firsts.setdefault(step // every, step)
        names = select(alive, retention)
        alive = [one for one in alive if one.name in names]
        assert set(firsts.values()) <= {one.step for one in alive}
    assert len(alive) <= len(firsts) + 2


def test_the_best_stay_and_what_has_no_number_is_never_best() -> None:
    losses = {1: 0.9, 2: 0.1, 3: math.nan, 4: 0.5, 5: -math.inf, 6: 0.2, 7: 0.8, 8: 0.7}
    history = [manifest(step, metrics={"loss": loss}) for step, loss in losses.items()] + [
        manifest(9),
        manifest(10),
    ]
    assert kept(history, Retention(best=Best("loss", "min", 2))) == [2, 6, 9, 10]
    assert kept(history, Retention(best=Best("loss", "max", 1))) == [1, 9, 10]


def test_of_equals_the_one_that_was_chosen_first_stays() -> None:
    history = [manifest(step, metrics={"loss": 1.0}) for step in range(1, 6)]
    assert kept(history, Retention(best=Best("loss", "min", 2))) == [1, 2, 4, 5]


def test_a_step_that_was_saved_twice_takes_one_place_among_the_best() -> None:
    twice = [manifest(6, metrics={"loss": 0.1}, nonce=nonce) for nonce in ("00000001", "00000002")]
    history = [manifest(3, metrics={"loss": 0.2}), *twice, manifest(9), manifest(10)]
    assert kept(history, Retention(best=Best("loss", "min", 2))) == [3, 6, 9, 10]
    assert would_be_among_best({"loss": 0.15}, Best("loss", "min", 2), twice)


@pytest.mark.parametrize(
    ("value", "is_among_them"),
    [(0.2, True), (0.4, True), (0.5, False), (0.6, False), (float("nan"), False)],
)
def test_a_number_is_among_the_best_if_fewer_are_as_good(value: float, is_among_them: bool) -> None:
    others = [manifest(step, metrics={"loss": loss}) for step, loss in enumerate((0.5, 0.3, 0.9))]
    others.append(manifest(9, metrics={"loss": float("nan")}))
    others.append(manifest(10))
    assert would_be_among_best({"loss": value}, Best("loss", "min", 2), others) is is_among_them
    assert would_be_among_best({"loss": -value}, Best("loss", "max", 2), []) is (value == value)
    assert not would_be_among_best({"accuracy": value}, Best("loss"), others)


def test_epoch_ends_and_labels_stay() -> None:
    history = [
        manifest(1, keep="paper"),
        manifest(2, tags=("epoch-end",)),
        manifest(3, keep=""),
        *(manifest(step) for step in (4, 5, 6)),
    ]
    assert kept(history, Retention()) == [1, 3, 5, 6]
    assert kept(history, Retention(epoch_ends=True)) == [1, 2, 3, 5, 6]
    reasons = {name.step: why for name, why in select(history, Retention(epoch_ends=True)).items()}
    assert reasons[1] == "kept for ever: paper"
    assert reasons[3] == "kept for ever: by request"
    assert reasons[2] == "end of an epoch"
    assert reasons[6] == "among the latest 2"


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 99)), unique=True), st.integers(2, 5))
def test_the_newest_two_are_always_kept(history: list[tuple[int, int]], latest: int) -> None:
    manifests = [manifest(step, epoch) for epoch, step in history]
    names = select(manifests, Retention(latest=latest))
    assert set(sorted((one.name for one in manifests), reverse=True)[:2]) <= set(names)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (2, Retention(2)),
        ("3", Retention(3)),
        ("latest 3", Retention(3)),
        ("every 1000 steps", Retention(2, 1000)),
        ("highest of val_acc", Retention(best=Best("val_acc", "max", 1))),
        ("lowest 3 of val_loss", Retention(best=Best("val_loss", "min", 3))),
        ("best of +val_acc", Retention(best=Best("val_acc", "max", 1))),
        ("best 2 of -val_loss", Retention(best=Best("val_loss", "min", 2))),
        ("epoch ends", Retention(epoch_ends=True)),
        (
            "latest 3, every 1000 steps, best 2 of +val/acc, epoch ends",
            Retention(3, 1000, Best("val/acc", "max", 2), True),
        ),
        (Retention(7), Retention(7)),
    ],
)
def test_keep_is_read_as_people_write_it(text: int | str | Retention, expected: Retention) -> None:
    assert parse_keep(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        1,
        0,
        -3,
        "latest 1",
        "",
        "all",
        "latest three",
        "every 0 steps",
        "best 0 of -x",
        "lowest 0 of x",
        "best of val_loss",
        "lowest of val_loss, highest of accuracy",
        "3, latest 4",
        True,
        2.5,
    ],
)
def test_what_is_unsafe_or_unclear_is_refused_with_advice(text: Any) -> None:
    with pytest.raises(SetupError) as refused:
        parse_keep(text)
    assert refused.value.hint


def test_the_best_of_a_number_without_a_direction_is_asked_for() -> None:
    """It meant the highest: of a loss, the worst."""
    with pytest.raises(SetupError, match=r'"lowest 2 of val_loss" or "highest 2 of val_loss"'):
        parse_keep("latest 3, best 2 of val_loss")


def test_a_training_that_diverges_keeps_what_it_can_go_back_to() -> None:
    good = [manifest(step) for step in (1, 2, 3)]
    bad = [manifest(step, tags=(NOT_FINITE,)) for step in (4, 5, 6, 7)]
    assert kept(good + bad, Retention(2)) == [3, 6, 7]
    assert kept([*good, *bad, manifest(8)], Retention(2)) == [7, 8]
    assert kept(bad, Retention(2)) == [6, 7]


def test_keeping_one_is_refused_with_the_reason() -> None:
    with pytest.raises(SetupError, match="if the only checkpoint proves damaged"):
        parse_keep(1)
