"""Machines are announced to go, and nodes are lost, at random instants and both at once."""

import contextlib
import os
import random
import threading
from pathlib import Path

import pytest
from nodes import Host, Nodes
from provider import Provider
from test_random_kills import NODES, SPARES, next_full_generation

from holdfast.jobs import exit_codes

SEEDS = range(20) if os.environ.get("HOLDFAST_TORTURE") else range(1)
ROUNDS = SPARES


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_goes_or_is_lost_those_left_train_on_in_their_places_until_they_are_done(
    host: Host, tmp_path: Path, seed: int
) -> None:
    luck = random.Random(seed)
    # Only those who go may cost an attempt: no failure is forgiven that is not a lost node.
    rules = {"first_pause": 0.0, "no_progress": 1, "restarts": 0}
    count, pause = NODES + SPARES, threading.Event()
    with contextlib.ExitStack() as opened:
        nodes = opened.enter_context(Nodes(host, tmp_path, nodes=NODES, spares=SPARES, rules=rules))
        providers = [opened.enter_context(Provider()) for _ in range(count)]
        for index in range(count):
            nodes.start(index, environ=providers[index].spot)
        index_of = {nodes.address(index): index for index in range(count)}
        goes, killed = set[int](), set[int]()
        before: dict[str, str] = {}
        for _ in range(ROUNDS):
            workers = next_full_generation(nodes.director)
            places = {worker.node: worker.address for worker in workers}
            for node, address in before.items():
                assert places[node] == address or index_of[address] in goes | killed, (places, before)
            before = places
            victim = workers[luck.randrange(NODES)]
            how = luck.choice(("announced", "announced", "killed", "killed while it goes"))
            if how != "killed":
                goes.add(index_of[victim.address])
                providers[index_of[victim.address]].preempted.set()
                with contextlib.suppress(ConnectionResetError):
                    victim.next_line()
                for worker in workers:
                    worker.order("exit", exit_codes.PLEASE_RUN_AGAIN)
            if how != "announced":
                pause.wait(luck.random() * 0.05)
                killed.add(index_of[victim.address])
                with contextlib.suppress(ProcessLookupError):
                    nodes.kill(index_of[victim.address])
        for worker in next_full_generation(nodes.director):
            worker.order("exit", 0)
        for index in range(count):
            allowed = {0} if index not in goes | killed else set()
            allowed |= {exit_codes.PLEASE_RUN_AGAIN} if index in goes else set()
            allowed |= {-9} if index in killed else set()
            assert nodes.end_of(index) in allowed, (index, goes, killed)
