"""Flatten and inflate are inverse for every container and leaf; a shape tells when a skeleton is stale."""

import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptCheckpoint, SetupError
from holdfast.format.tree import Leaves, flatten, inflate, skeleton


class Blob:
    """Stands for a tensor: equal only to itself."""

    def __repr__(self) -> str:
        return "Blob()"  # the same in every process, for the names of tests


LEAVES = Leaves(tensors={Blob})


def there_and_back(state: Any) -> Any:
    flat = flatten(state, LEAVES)
    entries = iter([{"name": str(i)} for i in range(len(flat.tensors))])
    tree = json.loads(json.dumps(skeleton(state, LEAVES, entries), allow_nan=False))
    values = json.loads(json.dumps([LEAVES.encode(v) for v in flat.values], allow_nan=False))
    return inflate(tree, values, lambda entry: flat.tensors[int(entry["name"])], LEAVES)


def same(a: Any, b: Any) -> bool:
    """Equal in type, order and bits; dict order counts, and so does every NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        kept = getattr(a, "default_factory", None) is getattr(b, "default_factory", None)
        pairs = list(zip(a.items(), b.items(), strict=True)) if len(a) == len(b) else []
        return kept and len(a) == len(b) and all(same(p, q) for p, q in pairs)
    if isinstance(a, (list, tuple, deque)):
        kept = getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
        return kept and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    return a is b or bool(a == b)


text = st.text(alphabet=st.characters(codec=None), max_size=8)
numbers = st.integers() | st.floats(allow_nan=True) | st.complex_numbers(allow_nan=True)
hashable = st.none() | st.booleans() | st.integers() | text | st.binary(max_size=8)
keys = hashable | st.floats(allow_nan=False) | st.tuples(st.integers(), text)
leaves = st.none() | st.booleans() | numbers | text | st.binary(max_size=8) | st.builds(Blob)
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(text, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(text, inner, max_size=3).map(lambda d: defaultdict(list, d))
        | st.dictionaries(text, st.integers(), max_size=3).map(Counter)
        | st.tuples(st.lists(inner, max_size=3), st.none() | st.integers(3, 9)).map(lambda p: deque(*p))
        | st.sets(hashable, max_size=4)
        | st.frozensets(st.tuples(st.integers(), text), max_size=3)
    ),
    max_leaves=12,
)


@given(states)
@settings(max_examples=300, deadline=None)
def test_any_state_comes_back_as_it_was(state: Any) -> None:
    assert same(there_and_back(state), state)


@pytest.mark.parametrize(
    "state",
    [
        {}, [], (), set(), frozenset(), {"a": {}}, [[], (), {}], {1: "int", "1": "text"}, {True: 1, 2.0: 2},
        {None: 0}, {(1, "a"): 2, ("a", (True, None)): 3}, {b"\x00": 1}, OrderedDict(b=1, a=2),
        Counter("hello"),
        deque([1, 2], maxlen=2), defaultdict(int, a=1), defaultdict(None, {1: 2}), {"x": -0.0, "y": math.nan},
        {"dict": {"with": 1}, "tensor": 2}, ((1, (2, [3, {4: {5}}])),), 7, None, "alone",
    ],
    ids=repr,
)  # fmt: skip
def test_awkward_states_come_back_as_they_were(state: Any) -> None:
    assert same(there_and_back(state), state)


def test_a_tensor_alone_is_a_state() -> None:
    blob = Blob()
    assert there_and_back(blob) is blob


class Unstorable:
    pass


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"a": [1, {"b": Unstorable()}]}, r"state\['a'\]\[1\]\['b'\]"),
        (Unstorable(), "state"),
        ([bytearray(b"x")], r"state\[0\].*bytearray"),
        ({"f": print}, r"state\['f'\]"),
        ({"d": defaultdict(lambda: 3)}, r"state\['d'\] is a defaultdict"),
    ],
)
def test_an_unknown_value_is_an_error_that_names_its_path(state: Any, path: str) -> None:
    with pytest.raises(SetupError, match=path):
        flatten(state, LEAVES)


def test_an_unknown_key_is_an_error_that_names_its_path() -> None:
    state = {"a": {Unstorable(): 1}}
    with pytest.raises(SetupError, match=r"state\['a'\].*key of type Unstorable"):
        skeleton(state, LEAVES, iter(()))


def test_subclasses_are_not_mistaken_for_their_base() -> None:
    class MyDict(dict[str, int]):
        pass

    class MyInt(int):
        pass

    for value in (MyDict(a=1), MyInt(3)):
        with pytest.raises(SetupError, match=r"cannot save"):
            flatten({"x": value}, LEAVES)


def test_a_state_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(SetupError, match=r"contains itself"):
        flatten(loop, LEAVES)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1}, {"b": 1}), ({"a": 1}, {"a": 1, "b": 2}), ([1], [1, 2]), ([1], (1,)), ({1: 0}, {True: 0}),
        ({1: 0}, {1.0: 0}), ({"a": 1}, {"a": Blob()}), ({"a": {}}, {"a": []}), ({"a": 1, "b": 2},
        {"b": 2, "a": 1}),
        (deque([1]), deque([1], 5)), ({(1, 2): 0}, {(True, 2): 0}), ({0.0: 1}, {-0.0: 1}), ([[1], 2],
        [[1, 2]]),
        (defaultdict(list), defaultdict(int)), ({}, OrderedDict()), ([None, [1]], [[None, 1]]),
    ],
    ids=repr,
)  # fmt: skip
def test_a_changed_form_has_a_changed_shape(before: Any, after: Any) -> None:
    assert flatten(before, LEAVES).shape != flatten(after, LEAVES).shape


@pytest.mark.parametrize(
    ("before", "after"),
    [({"a": 1}, {"a": "text"}), ([None, 2], [3.5, b""]), ({"s": {1, 2}}, {"s": {3, 4}})],
    ids=repr,
)
def test_changed_values_keep_the_shape(before: Any, after: Any) -> None:
    assert flatten(before, LEAVES).shape == flatten(after, LEAVES).shape


@given(states, states)
@settings(max_examples=150, deadline=None)
def test_equal_shapes_mean_that_one_skeleton_serves_both(one: Any, other: Any) -> None:
    a, b = flatten(one, LEAVES), flatten(other, LEAVES)
    if a.shape != b.shape:
        return
    entries = [iter([{"name": str(i)} for i in range(len(f.tensors))]) for f in (a, b)]
    assert json.dumps(skeleton(one, LEAVES, entries[0])) == json.dumps(skeleton(other, LEAVES, entries[1]))


@pytest.mark.parametrize(
    "tree",
    [
        5, -1, None, "x", [], {}, {"dict": 1}, {"dict": [[1]]}, {"unheard-of": []}, {"list": [0],
        "tuple": [0]},
        {"dict": [[["numpy", ["O", ""]], 0]]}, {"defaultdict": [], "with": "eval"}, {"set": [{"list": []}]},
        {"dict": [[{"list": [1]}, 0]]}, {"deque": [0], "with": -2}, {"tensor": {"name": "7"}}, True,
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_skeleton_is_refused(tree: Any) -> None:
    with pytest.raises(CorruptCheckpoint):
        inflate(tree, ["value"], _no_such_tensor, LEAVES)


def _no_such_tensor(entry: Any) -> Any:
    raise KeyError(entry["name"])
