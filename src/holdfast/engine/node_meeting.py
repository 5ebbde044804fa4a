"""The nodes of a run find each other: what each is called, where it keeps its files, how others read them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.engine.together import told_by_leader
from holdfast.errors import HoldfastError, SetupError
from holdfast.ranks.team import Team
from holdfast.stores.owner import this_process
from holdfast.stores.remote import RemoteStore
from holdfast.stores.serve import NodeServer
from holdfast.stores.shared_secret import agree_on_secret, read_secret
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.node_places import (
    failure_domain,
    logical_node,
    node_folder,
    nodes_here,
    open_node_store,
    serving_address,
)
from holdfast.tiers.words import Tier

_MINE, _SECRET = "local", "nodes.token"
# Enough to keep a wire busy; more would only be more threads at the other end.
_CONNECTIONS = 2
_MOST_CONNECTIONS = 4096


@dataclass
class Nodes:
    """The nodes as one rank sees them. `names` in the order of their first ranks, `stores` nearest first."""

    me: str
    names: tuple[str, ...]
    of_rank: tuple[str, ...]
    # Whether this rank acts for its node: settles, protects, copies, removes.
    acts: bool
    mine: CheckpointStore
    stores: dict[str, CheckpointStore | RemoteStore]
    # Left on this machine by nodes that the run no longer has; read, and emptied in time.
    left: list[CheckpointStore]
    server: NodeServer | None
    # What nodes share with others and die with: of the machines that they are on now.
    domains: Mapping[str, str] = field(default_factory=dict)

    def close(self) -> None:
        for store in self.stores.values():
            store.release()
        if self.server is not None:
            self.server.close()


def meet(team: Team, tier: Tier, home: CheckpointStore, limit: float, environ: Mapping[str, str]) -> Nodes:
    """Every rank calls it. Raises on all of them if one node cannot take part."""
    order = list(dict.fromkeys(team.nodes))
    acts = team.nodes.index(team.node) == team.rank
    uuid, secret = home.uuid, os.path.join(home.where, _SECRET)
    # Torch's store answers anybody, so the secret itself goes through a file that only this user can read.
    print_of_token = told_by_leader(team, "token", limit, lambda: _print_of(agree_on_secret(secret)))
    token, said = b"", dict[str, Any]()
    server: NodeServer | None = None
    try:
        token = _read_token(secret, print_of_token)
        me = logical_node(environ, order.index(team.node))
        mine = open_node_store(tier, uuid, me)
        said = {"node": me, "place": _place(tier, uuid, me), "domain": failure_domain(environ)}
        if acts:
            # All that lies here, also under names that the run no longer uses.
            here = {_left(name): open_node_store(tier, uuid, name) for name in nodes_here(tier, uuid)}
            room = min(64 + _CONNECTIONS * team.world, _MOST_CONNECTIONS)
            server = NodeServer({_MINE: mine, **here}, token, host=serving_address(environ), connections=room)
            said.update(address=server.address, here=[name.partition("/")[2] for name in here])
    except HoldfastError as error:
        said["error"] = str(error)
    try:
        heard = [json.loads(raw) for raw in team.gather("nodes", json.dumps(said).encode(), limit)]
        _refuse(heard)
        return _nodes(team, tier, uuid, heard, token, server, mine)
    except BaseException:
        if server is not None:
            server.close()
        raise


def _read_token(path: str, wanted: str) -> bytes:
    token = read_secret(path)
    if _print_of(token) != wanted:
        raise SetupError(
            f"{path} is not the file that rank 0 sees", hint="the run's folder must be shared by all ranks"
        )
    return token


def _print_of(token: bytes) -> str:
    return hashlib.sha256(token).hexdigest()


def _nodes(
    team: Team, tier: Tier, uuid: str, heard: list[dict[str, Any]], token: bytes,
    server: NodeServer | None, mine: CheckpointStore,
) -> Nodes:  # fmt: skip
    of_rank = tuple(str(one["node"]) for one in heard)
    names = tuple(dict.fromkeys(of_rank))
    me = of_rank[team.rank]
    stores: dict[str, CheckpointStore | RemoteStore] = {me: mine}
    left: list[CheckpointStore] = []
    for one in (heard[team.rank], *heard):
        if "address" not in one:
            continue
        node, address = str(one["node"]), (str(one["address"][0]), int(one["address"][1]))
        if node not in stores:
            stores[node] = RemoteStore(address, token, _MINE, connections=_CONNECTIONS)
        # Nodes that share a machine see each other's folders; those are not left over.
        used = {str(other["node"]) for other in heard if other["place"] == one["place"]}
        for name in sorted(set(one["here"]) - used):
            key = f"{name} on {node}"
            if key in stores:
                continue
            if node == me:
                stores[key] = near = open_node_store(tier, uuid, name)
                left.append(near)
            else:
                stores[key] = RemoteStore(address, token, _left(name), connections=_CONNECTIONS)
    # The rank that acts for a node speaks for it, here as well.
    domains = {str(one["node"]): str(one["domain"]) for one in heard if "address" in one and one["domain"]}
    return Nodes(me, names, of_rank, server is not None, mine, stores, left, server, domains)


def _refuse(heard: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(heard):
        if "error" in one:
            raise SetupError(f"the node of rank {rank} cannot keep checkpoints: {one['error']}")
    places: dict[str, str] = {}
    for rank, one in enumerate(heard):
        if places.setdefault(one["node"], one["place"]) != one["place"]:
            raise SetupError(
                f"rank {rank} is on a node called {one['node']}, and so are ranks on another machine",
                hint="give each node a HOLDFAST_NODE of its own, or none",
            )


def _place(tier: Tier, uuid: str, me: str) -> str:
    """Equal for those that see the same folder, and only for them."""
    folder = os.path.dirname(node_folder(tier, uuid, me))
    try:
        state = os.stat(folder)
    except OSError as error:
        raise SetupError(
            f"cannot keep checkpoints in {folder}: {error.strerror}",
            hint="is the tier's path right on each node?",
        ) from error
    return f"{this_process('').boot_id} {state.st_dev} {state.st_ino}"


def _left(name: str) -> str:
    return f"left/{name}"
