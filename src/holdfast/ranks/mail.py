"""What rank 0 says to all the others. Each has a box of its own, so that it can wake itself up and leave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from holdfast.ranks.boundary import Agreed
from holdfast.ranks.store import RankStore

WAKE = b"{}"


@dataclass(frozen=True)
class Letter:
    """One of: a proposal to answer, the verdict on one, a stop that was heard, or rank 0's goodbye.

    `silent` are the ranks from which no answer came, in every letter.
    """

    proposal: Agreed | None = None
    settled: int | None = None
    go: bool = False
    heard_stop: bool = False
    goodbye: bool = False
    silent: Sequence[int] = ()

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(raw: bytes) -> Letter:
        said = json.loads(raw)
        proposal = said.pop("proposal", None)
        return Letter(**said, proposal=Agreed(**proposal) if proposal else None)


def box(rank: int, number: int) -> str:
    return f"mail/{rank}/{number}"


def answer_key(number: int, rank: int) -> str:
    return f"answer/{number}/{rank}"


def send_to_all(store: RankStore, world: int, number: int, letter: Letter) -> None:
    """The `number`-th letter; every rank reads its own copy and takes it out of the store."""
    text = letter.to_bytes()
    store.set_many({box(rank, number): text for rank in range(1, world)})
