"""`holdfast run --nodes 8 --spares 4 -- command`: the same on every node, each with a keeper."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence

from holdfast.cli.render import clean
from holdfast.cli.result import Result
from holdfast.cli.running.rescue import rescue
from holdfast.cli.running.run_history import History, RunView, leaving, newest_checkpoint, output_opener
from holdfast.errors import SetupError, UsageError
from holdfast.jobs.spot_machine import spot_poller
from holdfast.jobs.supervisor import SupervisorSettings
from holdfast.keeper.keeper import Keeper
from holdfast.keeper.settings import KeeperSettings
from holdfast.tiers.node_places import LOOPBACK, serving_address
from holdfast.units import parse_seconds

MEET = "meet"
_SLURM_NAME = "SLURMD_NODENAME"


def add_node_options(parser: argparse.ArgumentParser) -> None:
    nodes = parser.add_argument_group(
        "several nodes",
        "start the same command on every node; the nodes meet in a folder that all of them see",
    )
    nodes.add_argument(
        "--nodes", metavar="N", help="nodes that train together; auto under Slurm: all but the spares"
    )
    nodes.add_argument(
        "--spares", type=int, default=0, metavar="N", help="nodes in reserve, for those that are lost"
    )
    nodes.add_argument(
        "--min-nodes", type=int, metavar="N", help="go on with as few as these when no spare is left"
    )
    nodes.add_argument(
        "--procs-per-node", type=int, default=1, metavar="N", help="commands per node (default %(default)s)"
    )
    nodes.add_argument("--meet", metavar="DIR", help="where the nodes meet (default: meet in --run DIR)")
    nodes.add_argument("--node-address", metavar="ADDR", help="where others reach this node")
    nodes.add_argument(
        "--silence", default="10 s", metavar="TIME",
        help="a node that is not heard of for so long is lost (default %(default)s)",
    )  # fmt: skip
    nodes.add_argument(
        "--join-timeout", default="10 min", metavar="TIME",
        help="until enough nodes are there at the start (default %(default)s)",
    )  # fmt: skip


def wants_nodes(options: argparse.Namespace) -> bool:
    if options.nodes is None and (options.meet is not None or options.spares):
        raise UsageError("--meet and --spares are for several nodes", hint="say how many: --nodes 8")
    return options.nodes is not None


def run_nodes(options: argparse.Namespace, command: Sequence[str], given: SupervisorSettings) -> Result:
    if options.dmtcp:
        raise UsageError("--dmtcp checkpoints one process and does not go together with --nodes")
    settings = _settings(options, given, os.environ)
    view = RunView(live=False)
    history = History(options.log, view.tell)
    notices = spot_poller(options.spot, os.environ)
    keeper = Keeper(
        command,
        settings,
        report=history.report,
        newest_checkpoint=newest_checkpoint,
        leaving=lambda: leaving(notices),
        open_output=output_opener(options.output, to_stderr=options.json),
    )
    if notices is not None:
        notices.start()
    try:
        code = keeper.run()
    finally:
        if notices is not None:
            notices.close()
    if code and not history.says_the_end:
        # The node that leads has said it already.
        print(f"holdfast run: exit code {code}: {clean(keeper.why)}", file=sys.stderr)
    alone = settings.nodes * settings.procs_per_node == 1 and history.folder is not None
    rescued = rescue(history.folder) if alone and history.folder is not None else None
    said = {"exit_code": code, "why": keeper.why, "run": history.folder, "rescued": rescued}
    return Result({**said, "events": history.as_json()}, code=code)


def _settings(
    options: argparse.Namespace, given: SupervisorSettings, environ: Mapping[str, str]
) -> KeeperSettings:
    meet = options.meet or (os.path.join(given.run, MEET) if given.run is not None else None)
    if meet is None:
        raise SetupError(
            "the nodes need a folder to meet in",
            hint="--meet DIR on a file system that all of them see, or --run DIR",
        )
    return KeeperSettings(
        nodes=count_nodes(options.nodes, options.spares, environ),
        meet=meet,
        address=options.node_address or own_address(environ),
        host=own_name(environ),
        spares=options.spares,
        min_nodes=options.min_nodes,
        procs_per_node=options.procs_per_node,
        run=given.run,
        rules=given.rules,
        hang=given.hang,
        deadline=given.deadline,
        grace=given.grace,
        silence_seconds=parse_seconds(options.silence),
        join_seconds=parse_seconds(options.join_timeout),
    )


def count_nodes(said: str, spares: int, environ: Mapping[str, str]) -> int:
    if said != "auto":
        if not said.isdecimal():
            raise UsageError(f"--nodes {said} is no number", hint="--nodes 8, or auto under Slurm")
        return int(said)
    nodes, tasks = (environ.get(f"SLURM_STEP_NUM_{what}", "") for what in ("NODES", "TASKS"))
    if not nodes.isdecimal() or not tasks.isdecimal():
        # A batch script alone runs on one node only, whatever the job was given.
        raise SetupError(
            "--nodes auto asks Slurm, and this is no step of a Slurm job",
            hint="srun --ntasks-per-node=1 holdfast run --nodes auto ..., or say how many: --nodes 8",
        )
    if nodes != tasks:
        raise SetupError(
            f"srun has started {tasks} tasks on {nodes} nodes, and a node needs one keeper",
            hint="srun --ntasks-per-node=1; more commands on each node: --procs-per-node",
        )
    return int(nodes) - spares


def own_name(environ: Mapping[str, str]) -> str:
    """What Slurm calls this node, and its administrators with it; else the machine's own name."""
    return environ.get(_SLURM_NAME) or socket.gethostname()


def own_address(environ: Mapping[str, str]) -> str:
    """Where the name leads to; where it only leads to itself, the address that this machine shows others."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(own_name(environ), None, type=socket.SOCK_STREAM)
        address = str(found[0][4][0])
        if not address.startswith("127.") and address != "::1":
            return address
    with contextlib.suppress(SetupError):
        # Many systems resolve their own name to loopback, which nobody else can reach.
        return serving_address({"MASTER_ADDR": "192.0.2.1"})
    return LOOPBACK
