"""Who trains together: a numbered generation, and which keeper sits in the place of which logical node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.errors import CorruptCheckpoint


@dataclass(frozen=True)
class Card:
    """How a keeper is found. `number` is the order in which keepers registered, and is never used again."""

    number: int
    address: str
    port: int
    host: str

    def __str__(self) -> str:
        return f"keeper {self.number} on {self.host} ({self.address})"


@dataclass(frozen=True)
class Seat:
    """A logical node, and the keeper that is this node now. Checkpoints know only the node's name."""

    node: str
    keeper: int
    address: str
    host: str


@dataclass(frozen=True)
class World:
    generation: int
    leader: int
    procs_per_node: int
    seats: tuple[Seat, ...]
    # Keepers that were in a world and vanished from it. They stay out, also if they come back.
    lost: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return len(self.seats) * self.procs_per_node

    @property
    def keepers(self) -> frozenset[int]:
        return frozenset(seat.keeper for seat in self.seats)

    def index_of(self, keeper: int) -> int | None:
        return next((i for i, seat in enumerate(self.seats) if seat.keeper == keeper), None)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "seats": [asdict(seat) for seat in self.seats], "lost": list(self.lost)}

    @staticmethod
    def from_json(raw: Any) -> World:
        """CorruptCheckpoint for anything that is not a whole world."""
        try:
            seats = tuple(
                Seat(str(s["node"]), int(s["keeper"]), str(s["address"]), str(s["host"]))
                for s in raw["seats"]
            )
            return World(
                int(raw["generation"]),
                int(raw["leader"]),
                int(raw["procs_per_node"]),
                seats,
                tuple(int(n) for n in raw["lost"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpoint(f"this is not the record of a world: {error!r}") from error


def node_name(index: int) -> str:
    return f"node{index:03d}"


def take_seats(before: Iterable[Seat], present: Iterable[Card], nodes: int) -> tuple[Seat, ...]:
    """Seats for at most `nodes` keepers.

    A keeper that had a seat keeps it, and with it its ranks and what lies on its disk. Then come keepers on a
    machine that was a node before, in an earlier job perhaps; only then do the others fill what is empty.
    """
    cards = sorted(present, key=lambda card: card.number)
    was = {seat.node: seat for seat in before}
    names = [node_name(index) for index in range(nodes)]
    taken: dict[str, Card] = {}

    def seat_those(who: Callable[[Card, Seat], bool]) -> None:
        for name in names:
            seat = was.get(name)
            card = next((c for c in cards if seat is not None and name not in taken and who(c, seat)), None)
            if card is not None:
                taken[name] = card
                cards.remove(card)

    seat_those(lambda card, seat: card.number == seat.keeper)
    seat_those(lambda card, seat: (card.host, card.address) == (seat.host, seat.address))
    # Places that somebody held before come first: their files are asked for, those of a new name are not.
    for name in sorted((n for n in names if n not in taken), key=lambda n: (n not in was, n)):
        if cards:
            taken[name] = cards.pop(0)
    return tuple(Seat(n, taken[n].number, taken[n].address, taken[n].host) for n in sorted(taken))


def changes(before: World | None, after: World) -> list[str]:
    """For people: who sits in whose place."""
    was = {seat.node: seat for seat in before.seats} if before is not None else {}
    replaced = [(was[s.node], s) for s in after.seats if s.node in was and was[s.node].keeper != s.keeper]
    empty = sorted(set(was) - {seat.node for seat in after.seats})
    return [
        *(
            f"{new.node} is {new.host} ({new.address}) now, in place of {old.host} ({old.address})"
            for old, new in replaced
        ),
        *(f"{node} has no replacement; going on with {len(after.seats)} nodes" for node in empty),
    ]
