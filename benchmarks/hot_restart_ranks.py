"""Starts the training's ranks as any launcher would, but forked from one process that has torch already.

Each line of standard input is {"base": ..., "world": 3, "epochs": 6, "environ": {...}}; the answer is the
list of exit codes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback

import hot_restart_training


def start(rank: int, request: dict, port: int) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.environ.update(
            request["environ"], MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
            WORLD_SIZE=str(request["world"]), LOCAL_RANK=str(rank),
        )  # fmt: skip
        if os.environ.get("HOLDFAST_NODE_FROM_RANK"):
            os.environ.update(HOLDFAST_NODE=f"node{rank:03d}", NODE_DIR=f"{request['base']}/disk{rank}")
        sys.argv[1:] = [request["base"], str(request["epochs"])]
        hot_restart_training.main()
        status = 0
    except BaseException:  # noqa: BLE001  a rank must not return into its parent
        traceback.print_exc()
    finally:
        os._exit(status)


def wait_for(ranks: list[int]) -> list[int]:
    """As a plain launcher does: if one fails, it ends the others, and that was it."""
    codes: dict[int, int] = {}
    while len(codes) < len(ranks):
        child, status = os.waitpid(-1, 0)
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child] != 0:
            for rank in set(ranks) - set(codes):
                os.kill(rank, signal.SIGKILL)
    return [codes[rank] for rank in ranks]


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = [start(rank, request, port) for rank in range(request["world"])]
        print(json.dumps(wait_for(ranks)), flush=True)


if __name__ == "__main__":
    main()
