"""How the ranks of one Run find each other, and nobody else.

The store may outlive a Run, and under torchrun even the processes: keys of an earlier Run, of an earlier life
of this rank, or of a rank that gave up may all still be there. So rank 0 draws a session, and a rank counts
only once it has shown, by answering in that session to a token it drew itself, that it is alive now.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from holdfast.clock import Clock
from holdfast.errors import StoreUnavailable
from holdfast.ranks.pulse import BEAT_SECONDS, SILENCE_SECONDS
from holdfast.ranks.store import RankStore
from holdfast.ranks.team import Team, rank_list

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1


@dataclass(frozen=True)
class Place:
    """Where a rank runs. `group` tells apart several launchers on one machine; `node` overrules both.
    `process` is its number on `machine`, which is one boot of one system and one numbering of processes."""

    host: str
    group: str | None = None
    node: str | None = None
    local_rank: int | None = None
    machine: str | None = None
    process: int | None = None


def join(
    store: RankStore, clock: Clock, *, rank: int, world: int, place: Place, limit: float,
    beat: float = BEAT_SECONDS, silence: float = SILENCE_SECONDS,
) -> Team:  # fmt: skip
    """Every rank calls it with a store scoped to the run; returns when all of them have."""
    if rank == 0:
        session, places = _welcome(store, clock, world, place, limit)
    else:
        session, places = _be_welcomed(store, rank, place, limit)
    nodes = node_names(places)
    local_rank = place.local_rank
    if local_rank is None:
        local_rank = nodes[:rank].count(nodes[rank])
    beside = {
        other: at.process
        for other, at in enumerate(places)
        if at.process is not None and at.machine == place.machine and other != rank
    }
    afar = [o for o, at in enumerate(places) if at.machine and place.machine and at.machine != place.machine]
    return Team(
        store.scoped(session), rank=rank, world=world, nodes=nodes, local_rank=local_rank, beside=beside,
        afar=afar, beat=beat, silence=silence,
    )  # fmt: skip


def node_names(places: Sequence[Place]) -> tuple[str, ...]:
    """The host's name, because it stays when ranks move; several launchers on one host are told apart."""
    groups: dict[str, set[str | None]] = {}
    for place in places:
        groups.setdefault(place.host, set()).add(place.group)
    return tuple(p.node or (f"{p.host}-{p.group}" if len(groups[p.host]) > 1 else p.host) for p in places)


def _be_welcomed(store: RankStore, rank: int, place: Place, limit: float) -> tuple[str, list[Place]]:
    token = secrets.token_hex(8)
    store.set(f"hello/{rank}", token.encode())
    welcome = store.get(f"welcome/{token}", limit)
    if welcome is None:
        raise _alone(f"rank 0 did not start this Run within {limit:g} s")
    session = welcome.decode()
    store.set(f"{session}/here/{rank}", json.dumps(asdict(place)).encode())
    table = store.get(f"{session}/table", limit)
    if table is None:
        raise _alone(f"rank 0 heard this rank, but not all the others, within {limit:g} s")
    return session, [Place(**entry) for entry in json.loads(table)]


def _welcome(
    store: RankStore, clock: Clock, world: int, place: Place, limit: float
) -> tuple[str, list[Place]]:
    end = clock.monotonic() + limit
    session = secrets.token_hex(8)
    hellos = [f"hello/{rank}" for rank in range(1, world)]
    here = [f"{session}/here/{rank}" for rank in range(1, world)]
    welcomed: set[str] = set()
    pause = FIRST_PAUSE
    while not store.check(here):
        if store.check(hellos):
            tokens = {token.decode() for token in store.get_many(hellos, LONGEST_PAUSE) or ()} - welcomed
            store.set_many({f"welcome/{token}": session.encode() for token in tokens})
            welcomed |= tokens
        if clock.monotonic() >= end:
            missing = [rank for rank in range(1, world) if not store.check([here[rank - 1]])]
            raise _alone(f"{rank_list(missing)} did not start this Run within {limit:g} s")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    places = [place, *(Place(**json.loads(raw)) for raw in store.get_many(here, limit) or ())]
    store.set(f"{session}/table", json.dumps([asdict(p) for p in places]).encode())
    for key in [f"welcome/{token}" for token in welcomed] + here:
        store.delete(key)
    return session, places


def _alone(message: str) -> StoreUnavailable:
    return StoreUnavailable(
        message, hint="every rank must create the Run, with the same folder, at the same place in the script"
    )
