"""Four nodes in two racks that are lost as a whole. A program of its own, like nodes_at_work.py."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from nodes_at_work import Job, on_node, protected
from ranks_at_work import Training, in_ranks

import holdfast

NODES = 4
# Neighbours in the order of the nodes are in different racks; and later, after a move, in the same one.
ACROSS, ALONG = ("east", "west", "east", "west"), ("north", "north", "south", "south")


class Racks:
    """One run; each start tells every node its rack, or nothing."""

    def __init__(self, base: Path, scheme: str) -> None:
        self.base = base
        self.job = Job(base, "none", NODES, 1, [str(base / "caches"), scheme])
        self.starts = 0

    def lose(self, racks: Sequence[str], rack: str) -> None:
        for node, where in enumerate(racks):
            if where == rack:
                self.job.lose(node)

    def start(self, racks: Sequence[str] | None) -> list[Any]:
        """Restore, train one step, save, protect, and die. What each rank found and what it had at the end,
        or what kept it from starting."""
        self.starts += 1
        talk = self.base / f"talk-{self.starts}"

        def work(rank: int) -> None:
            on_node(rank)
            if racks is not None:
                os.environ["HOLDFAST_FAILURE_DOMAIN"] = racks[rank]
            one_step(self.job, talk / f"told-{rank}.json", rank)

        in_ranks(NODES, work, talk)
        return [json.loads((talk / f"told-{rank}.json").read_text()) for rank in range(NODES)]


def one_step(job: Job, answer: Path, rank: int) -> None:
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("holdfast").addHandler(listener)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    training = Training("none", rank)
    try:
        run = holdfast.Run(
            job.run, tiers=job.words, every="1000 steps", wait_limit=20.0, **training.tracked
        ).__enter__()
    except holdfast.HoldfastError as error:
        answer.write_text(json.dumps({"refused": f"{type(error).__name__}: {error}"}))
        return
    found = {"resumed": run.resumed.step if run.resumed else None, "at start": training.whole()}
    # What was restored has its protection again, in today's sets, before anything newer has.
    protected(run)
    training.step(torch.full((2, 5), float(rank)), torch.ones(2, 3))
    run.end_step()
    run.save_now().wait()
    protected(run)
    torch.distributed.barrier()
    answer.write_text(json.dumps({**found, "at death": training.whole(), "said": said}))
    os.kill(os.getpid(), signal.SIGKILL)


def scenario_racks(base: Path, scheme: str) -> dict[str, Any]:
    """A rack is lost; the nodes that replace it stand elsewhere; then one of the racks of now is lost."""
    racks = Racks(base, scheme)
    found = {"first": racks.start(ACROSS)}
    racks.lose(ACROSS, "east")
    found["rack lost"] = racks.start(ALONG)
    racks.lose(ALONG, "north")
    found["other rack lost"] = racks.start(ALONG)
    return found


def scenario_unnamed(base: Path, scheme: str) -> dict[str, Any]:
    """The same loss, where nobody told the nodes what they share."""
    racks = Racks(base, scheme)
    found = {"first": racks.start(None)}
    racks.lose(ACROSS, "east")
    found["rack lost"] = racks.start(None)
    return found


SCENARIOS = {"racks": scenario_racks, "unnamed": scenario_unnamed}


if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
