"""What a loop carries from step to step is read from its source, and what every step makes anew is not."""

import ast
import textwrap

import pytest

from holdfast.engine.loop_source import carried_at, updated_attributes


def carried(source: str) -> set[str]:
    """Of the line that says `here`."""
    text = textwrap.dedent(source)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "here" in each)
    return set(carried_at(ast.parse(text), line).names)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("for b in data:\n  total += loss(b)\n  here()", {"total"}),
        ("for b in data:\n  best = min(best, loss(b))\n  here()", {"best"}),
        ("for b in data:\n  out, hidden = rnn(b, hidden)\n  here()", {"hidden"}),
        ("x = get()\nfor b in data:\n  use(x)\n  x = get()\n  here()", {"x"}),
        ("for b in data:\n  loss = f(b)\n  loss = loss * 2\n  g(loss)\n  here()", set()),
        ("for b in data:\n  if b:\n    lr = 1\n  else:\n    lr = 2\n  use(lr)\n  here()", set()),
        ("for b in data:\n  if b:\n    scale = 1\n  use(scale)\n  here()", {"scale"}),
        ("for e in es:\n  n = 0\n  for b in data:\n    n += 1\n    here()\n  print(n)", {"n"}),
        ("for b in data:\n  for part in b:\n    loss = f(part)\n  g(loss)\n  here()", set()),
        ("for b in data:\n  self.meter.total += f(b)\n  here()", {"self.meter.total"}),
        ("for b in data:\n  seen[b] = 1\n  here()", {"seen"}),
        ("t0 = time.time()\nfor b in data:\n  t1 = time.time()\n  d = t1 - t0\n  t0 = t1\n  here()", set()),
        ("def f():\n  count = 0\n  while count < 9:\n    count += 1\n    here()", {"count"}),
        ("for i, b in enumerate(data):\n  y = [i for i in b]\n  here()", set()),
    ],
)  # fmt: skip
def test_only_what_is_read_before_it_is_written_is_carried(source: str, expected: set[str]) -> None:
    assert carried(source) == expected


def test_a_loader_that_is_read_without_the_run_is_seen() -> None:
    tree = ast.parse(
        "for i, x in enumerate(tqdm(loader)):\n  step(x)\nfor x in run.batches(loader):\n  step(x)"
    )
    assert set(carried_at(tree, 2).read_directly) == {"loader"}
    assert not carried_at(tree, 4).read_directly


def test_attributes_that_a_method_makes_out_of_themselves_are_state() -> None:
    tree = ast.parse(
        "class World:\n"
        "  def move(self, a):\n"
        "    self.at = 0.9 * self.at + a\n"
        "    self.last = a\n"
        "    self.moves += 1\n"
    )
    assert updated_attributes(tree) == {"at", "moves"}
