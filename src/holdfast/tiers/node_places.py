"""Where the nodes of a run keep their own checkpoints, what they are called, and where others reach them.

    <path of the tier>/<uuid of the run>/<logical node>/ckpt/...

A logical name is a place in the job and not a machine: a replacement bears the name of the node whose place
it takes. The name is part of the path, so several of them may share a machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping, Sequence

from holdfast.errors import SetupError, StoreDenied, StoreError
from holdfast.stores.locations import node_store
from holdfast.stores.os_errors import store_errors
from holdfast.stores.ownership import make_private, not_private
from holdfast.stores.posix import PosixIO
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.forgotten_memory import NODE_CACHES
from holdfast.tiers.memory_folder import default_root
from holdfast.tiers.words import Tier

NODE, ADDRESS, FAILURE_DOMAIN = "HOLDFAST_NODE", "HOLDFAST_ADDRESS", "HOLDFAST_FAILURE_DOMAIN"
LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_LONGEST_DOMAIN = 255
# Routed to by every host that has a default route, and assigned to nobody (RFC 5737).
_ANYWHERE = "192.0.2.1"


def node_tier(tiers: Sequence[Tier]) -> Tier | None:
    """The tier that each node keeps for itself, if there is one. Several ranks can have one, in front."""
    local = [tier for tier in tiers if tier.is_node_local]
    if not local:
        return None
    if len(local) > 1:
        names = " and ".join(tier.location for tier in local)
        raise SetupError(
            f"{names} are both local to a node; several ranks keep their checkpoints in one of them",
            hint="name one of them",
        )
    if tiers[0] is not local[0] or local[0].flush_every is not None:
        raise SetupError(
            f"{local[0].location} is local to each node, and must come first and take every checkpoint",
            hint='write tiers like ["/local/nvme", "partner", "run every 10"]',
        )
    return local[0]


def logical_node(environ: Mapping[str, str], index: int) -> str:
    """HOLDFAST_NODE if it is set, else `node000` and so on by the order of the nodes' first ranks."""
    name = environ.get(NODE) or f"node{index:03d}"
    if _NAME.fullmatch(name) is None:
        raise SetupError(
            f"{NODE}={name!r} is no name for a node", hint="letters, digits, dots, dashes; 64 at most"
        )
    return name


def failure_domain(environ: Mapping[str, str]) -> str | None:
    """What this machine dies with: HOLDFAST_FAILURE_DOMAIN if it is set, else what Slurm's topology has above
    the node. None where nobody says."""
    given = environ.get(FAILURE_DOMAIN, "").strip()
    if len(given) > _LONGEST_DOMAIN or not given.isprintable():
        raise SetupError(
            f"{FAILURE_DOMAIN}={given[:40]!r}… is no name for what nodes share",
            hint=f"one line of {_LONGEST_DOMAIN} characters at most",
        )
    return given or _domain_from_slurm(environ)


def _domain_from_slurm(environ: Mapping[str, str]) -> str | None:
    # From the top down, parts separated by dots, each named by the pattern: "root.leaf3.tux7" is a
    # "switch.switch.node", with topology/block "b8.tux7" a "block.node". Without a topology it is the node's
    # name and "node"; a level to which a node has no switch is empty (srun(1), topology_p_get_node_addr).
    kinds = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    # A node's name may have dots; those of switches do not.
    parts = environ.get("SLURM_TOPOLOGY_ADDR", "").split(".", len(kinds) - 1)
    if kinds[-1] != "node" or len(parts) != len(kinds) or not any(parts[:-1]):
        return None
    return ".".join(parts[:-1])


def node_folder(tier: Tier, run_uuid: str, node: str) -> str:
    return os.path.join(_base(tier), run_uuid, logical_node({NODE: node}, 0))


def open_node_store(tier: Tier, run_uuid: str, node: str) -> CheckpointStore:
    """The store of one logical node of a run on this machine. Its folder is this user's alone."""
    base = _base(tier)
    if tier.kind == "memory":
        for folder in (default_root(), base):
            make_private(folder)
    else:
        with store_errors("make a folder", base):
            os.makedirs(base, exist_ok=True)
    make_private(os.path.join(base, run_uuid))
    return node_store(node_folder(tier, run_uuid, node), uuid=run_uuid, io=PosixIO(own=True), makes_room=True)


def nodes_here(tier: Tier, run_uuid: str) -> list[str]:
    """The logical nodes that have left something of this run on this machine."""
    folder = os.path.join(_base(tier), run_uuid)
    try:
        if (why := not_private(folder)) is not None:
            raise StoreDenied(
                f"{folder} is not this user's alone: {why}", hint="remove it, or ask its owner to"
            )
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot list what nodes keep in {tier.location}: {error.strerror}") from error
    return sorted(name for name in names if _NAME.fullmatch(name))


def serving_address(environ: Mapping[str, str]) -> str:
    """The address under which other nodes reach this one.

    HOLDFAST_ADDRESS if it is set, else the one that this machine uses towards MASTER_ADDR.
    """
    if given := environ.get(ADDRESS):
        return given
    master = environ.get("MASTER_ADDR") or LOOPBACK
    try:
        mine = _address_towards(master)
    except OSError as error:
        raise SetupError(
            f"cannot find a way to MASTER_ADDR={master}: {error}",
            hint=f"set {ADDRESS} to the address of this node",
        ) from error
    if mine.startswith("127.") and not master.startswith("127.") and master != "localhost":
        # Many systems resolve their own name to loopback, which nobody else can reach.
        with contextlib.suppress(OSError):
            return _address_towards(_ANYWHERE)
    return mine


def _address_towards(host: str) -> str:
    family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Sends nothing: the kernel only looks up the route.
        probe.connect(target)
        return str(probe.getsockname()[0])


def _base(tier: Tier) -> str:
    return os.path.join(default_root(), NODE_CACHES) if tier.kind == "memory" else tier.path
