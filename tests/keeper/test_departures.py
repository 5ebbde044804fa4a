"""A provider announces the end of one machine of several: the run saves, and a spare takes its place."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import Host, Nodes
from prepared_run import PreparedRun
from provider import Provider

from holdfast.jobs import exit_codes

SAVED = exit_codes.PLEASE_RUN_AGAIN
# One failure, or one attempt without a new checkpoint, would be too many.
STRICT = {"first_pause": 0.0, "restarts": 0, "no_progress": 1}


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as made:
        yield made


@pytest.mark.parametrize("victim", [1, 0], ids=["a member", "the leader"])
def test_a_spare_takes_the_place_of_a_preempted_node_once_all_have_saved(
    host: Host, tmp_path: Path, provider: Provider, victim: int
) -> None:
    with Nodes(host, tmp_path, nodes=2, spares=1, rules=STRICT) as nodes:
        for index in range(3):
            nodes.start(index, environ=provider.spot if index == victim else {})
        first = nodes.director.expect(2)
        provider.preempted.set()
        assert first[victim].next_line() == "SIGTERM"
        for worker in first:
            worker.order("exit", SAVED)
        second = nodes.director.expect(2)
        places = [nodes.address(n) for n in (0, 1)]
        places[victim] = nodes.address(2)
        assert [w.address for w in second] == places
        assert {w.environ["HOLDFAST_ATTEMPT"] for w in second} == {"1"}
        assert nodes.end_of(victim) == SAVED
        assert "being preempted; the others go on without this node" in nodes.why(victim)
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in (1 - victim, 2)] == [0, 0]
        [ended] = nodes.events(0, "AttemptEnded")[:1]
        assert (ended["cause"], ended["planned"], ended["will_restart"]) == ("preemption", True, True)
        assert f"node{victim:03d} on" in ended["detail"]


def test_without_a_spare_everybody_stops_with_a_checkpoint(
    host: Host, tmp_path: Path, provider: Provider
) -> None:
    with Nodes(host, tmp_path, nodes=2) as nodes:
        nodes.start(0)
        nodes.start(1, environ=provider.spot)
        workers = nodes.director.expect(2)
        provider.preempted.set()
        assert workers[1].next_line() == "SIGTERM"
        for worker in workers:
            worker.order("exit", SAVED)
        assert [nodes.end_of(0), nodes.end_of(1)] == [SAVED, SAVED]


def test_workers_may_hear_of_it_before_their_keeper(host: Host, tmp_path: Path, provider: Provider) -> None:
    with Nodes(host, tmp_path, nodes=2, spares=1, rules=STRICT) as nodes:
        nodes.start(0)
        nodes.start(1, environ=provider.spot)
        nodes.start(2)
        first = nodes.director.expect(2)
        for worker in first:
            # All ranks end with the reason of the one that was asked.
            worker.beat(tmp_path / "run", "notice: GCP: the machine is being preempted")
            worker.order("exit", SAVED)
        for worker in first:
            worker.wait_gone()
        provider.preempted.set()
        second = nodes.director.expect(2)
        assert [w.address for w in second] == [nodes.address(n) for n in (0, 2)]
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in range(3)] == [0, SAVED, 0]


def test_a_preempted_spare_just_leaves(host: Host, tmp_path: Path, provider: Provider) -> None:
    with Nodes(host, tmp_path, nodes=1, spares=1) as nodes:
        nodes.start(0)
        nodes.start(1, environ=provider.spot)
        [worker] = nodes.director.expect(1)
        provider.preempted.set()
        assert nodes.end_of(1) == SAVED
        worker.order("exit", 0)
        assert nodes.end_of(0) == 0


@pytest.mark.parametrize(("scheme", "copied"), [("single", True), ("xor:2", False)])
def test_what_the_others_could_not_put_together_without_it_is_saved_before_it_goes(
    host: Host, tmp_path: Path, provider: Provider, scheme: str, copied: bool
) -> None:
    run = PreparedRun(tmp_path, 2, local="memory")
    newest = run.save(13, scheme)
    with Nodes(host, tmp_path, nodes=2, spares=1, run=str(run.home)) as nodes:
        nodes.start(0)
        nodes.start(1, environ=provider.spot)
        nodes.start(2)
        first = nodes.director.expect(2)
        provider.preempted.set()
        assert first[1].next_line() == "SIGTERM"
        for worker in first:
            worker.order("exit", SAVED)
        second = nodes.director.expect(2)
        assert run.names_at_home() == ([newest] if copied else [])
        # Memory is given back when a job leaves its nodes, and this one goes on.
        assert run.place(0, newest).exists()
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in range(3)] == [0, SAVED, 0]
    assert run.is_whole_at_home(newest)


def test_a_lost_node_costs_no_restart(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=2, spares=1, rules=STRICT) as nodes:
        nodes.start(0, 1, 2)
        nodes.director.expect(2)
        nodes.kill(1)
        for worker in nodes.director.expect(2):
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in (0, 2)] == [0, 0]
