"""Keepers and workers killed and stopped at random instants, while generations form and while they run."""

import contextlib
import os
import random
import signal
import threading
from pathlib import Path

import pytest
from nodes import Director, Host, Nodes, Worker

SEEDS = range(40) if os.environ.get("HOLDFAST_TORTURE") else range(1)
NODES, SPARES = 3, 4


def next_full_generation(director: Director) -> list[Worker]:
    """The workers of the next generation that is complete. Some are ended before they are."""
    worlds: dict[tuple[str, str], list[Worker]] = {}
    while True:
        [worker] = director.expect(1)
        key = (worker.environ["TORCHELASTIC_RESTART_COUNT"], worker.environ["MASTER_PORT"])
        members = worlds.setdefault(key, [])
        members.append(worker)
        if len(members) == NODES:
            return sorted(members, key=lambda one: one.rank)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_killed_those_left_train_on_in_their_places_until_they_are_done(
    host: Host, tmp_path: Path, seed: int
) -> None:
    luck = random.Random(seed)
    rules = {"first_pause": 0.0, "no_progress": 0, "restarts": 1000}
    with Nodes(host, tmp_path, nodes=NODES, spares=SPARES, rules=rules, silence_seconds=1.5) as nodes:
        nodes.start(*range(NODES + SPARES))
        alive, stopped, before = set(range(NODES + SPARES)), set[int](), dict[str, str]()
        pause = threading.Event()
        for _ in range(10):
            workers = next_full_generation(nodes.director)
            assert [worker.rank for worker in workers] == list(range(NODES))
            places = {worker.node: worker.address for worker in workers}
            assert len(set(places.values())) == NODES
            reachable = {nodes.address(index) for index in alive}
            for node, address in before.items():
                # Who lives stays where it was.
                assert places[node] == address or address not in reachable, (places, before)
            before = places
            for worker in workers[: luck.choice((0, 0, 1))]:
                worker.kill()
            pause.wait(luck.random() * 0.05)
            for index in luck.sample(sorted(alive), luck.choice((0, 1, 1, 2))):
                if len(alive) > NODES:
                    nodes.kill(index, luck.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)))
                    alive.discard(index)
                    stopped.add(index)
            if any(nodes.address(index) in places.values() for index in stopped):
                continue
            workers[luck.randrange(NODES)].kill()
        for index in stopped:
            with contextlib.suppress(ProcessLookupError):
                nodes.kill(index, signal.SIGCONT)
        for worker in next_full_generation(nodes.director):
            worker.order("exit", 0)
        assert {nodes.end_of(index) for index in alive} == {0}
        # Those that were only stopped find that they were given up, or that everybody has gone home.
        assert {nodes.end_of(index) for index in stopped} <= {-9, 94, 91, 0}
