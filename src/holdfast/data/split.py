"""How ranks share one global order: pure arithmetic on one global count.

A step takes the next `world x batch` items of the order and deals them out like cards, rank r getting every
world-th from r on, which is what torch's DistributedSampler does. Nothing here depends on how earlier items
were shared, so ranks and batch sizes may change at any count.

The end of the order rarely fits. Either a few items of its beginning are repeated until all ranks have
equally many (`padding`, never more than world - 1 items), or the rest that cannot be shared equally is
left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from holdfast.data.order import Order

# The order is read in parts of this many items: long enough to cost nothing per batch, short enough not to
# be felt when one is computed.
_PART = 1 << 13


class Turn(NamedTuple):
    """What one rank loads for one step. `consumed` counts items of all ranks, this step's included."""

    items: list[Any]
    consumed: int
    padding: int


@dataclass(frozen=True)
class Share:
    """This rank's part in the splitting, and what happens to the rest that does not fit."""

    batch: int
    rank: int = 0
    world: int = 1
    drop_uneven: bool = False  # leave out what cannot be shared equally, instead of padding
    drop_short: bool = False  # leave out a last batch that is not full

    @property
    def stride(self) -> int:
        return self.batch * self.world

    def of_rest(self, rest: int) -> int:
        """How many items each rank gets of the last `rest` (fewer than a stride), padding included."""
        each = rest // self.world if self.drop_uneven else -(-rest // self.world)
        return 0 if self.drop_short and each < self.batch else each

    def turns_in(self, size: int) -> int:
        """Batches that each rank gets of a whole order of `size` items."""
        return size // self.stride + (1 if self.of_rest(size % self.stride) else 0)

    def dropped_of(self, remaining: int) -> int:
        """How many of the last `remaining` items nobody gets."""
        rest = remaining % self.stride
        return max(0, rest - self.of_rest(rest) * self.world)


def turns_of_order(order: Order, start: int, share: Share) -> Iterator[Turn]:
    """The turns of one rank from position `start` on."""
    stride = share.stride
    part = max(1, _PART // stride) * stride
    whole = start + (order.size - start) // stride * stride
    for begin in range(start, whole, part):
        end = min(begin + part, whole)
        mine = order.read(begin, end)[share.rank :: share.world].tolist()
        for i in range(0, len(mine), share.batch):
            consumed = begin + (i // share.batch + 1) * stride
            yield Turn(mine[i : i + share.batch], consumed, 0)
    rest = order.size - whole
    missing = max(0, share.of_rest(rest) * share.world - rest)
    head = order.read(0, min(missing, order.size)).tolist() if rest else []
    last = _last_turn(order.read(whole, order.size).tolist(), head, order.size, share)
    if last is not None:
        yield last


def turns_of_stream(take: Callable[[int], list[Any]], start: int, share: Share) -> Iterator[Turn]:
    """The same for an order that can only be read from its beginning: passes over `start` items, loads
    nothing. `take(n)` gives the next n items, or fewer at the end."""
    head = take(min(start, share.world - 1)) if start else []
    to_pass = start - len(head)
    while to_pass > 0 and (passed := len(take(min(to_pass, _PART)))):
        to_pass -= passed
    consumed = start - max(0, to_pass)
    while len(block := take(share.stride)) == share.stride:
        # A start before the last item that padding may want: the head goes on in what follows.
        head += block[: share.world - 1 - len(head)]
        consumed += share.stride
        yield Turn(block[share.rank :: share.world], consumed, 0)
    head += block[: share.world - 1 - len(head)]
    last = _last_turn(block, head, consumed + len(block), share)
    if last is not None:
        yield last


def _last_turn(rest: list[Any], head: list[Any], consumed: int, share: Share) -> Turn | None:
    each = share.of_rest(len(rest))
    if each == 0:
        return None
    pool = deque(rest)
    while len(pool) < each * share.world:
        pool.extend(head or rest)
    dealt = list(islice(pool, share.rank, each * share.world, share.world))
    own = len(range(share.rank, min(len(rest), each * share.world), share.world))
    return Turn(dealt, consumed, len(dealt) - own)
