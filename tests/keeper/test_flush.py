"""When nodes run out or a job ends early, the newest checkpoint that only the nodes have is made to last."""

import signal
from pathlib import Path

import pytest
from nodes import Host, Nodes, Worker
from prepared_run import PreparedRun, damage

from holdfast.jobs import exit_codes
from holdfast.stores.store import CheckpointStore


def in_training(nodes: Nodes, run: PreparedRun, count: int) -> list[Worker]:
    workers = nodes.director.expect(count)
    workers[0].beat(run.home)
    return workers


@pytest.mark.parametrize(
    ("scheme", "count", "lost"),
    [("xor:3", 3, [1]), ("partner", 4, [2]), ("rs:2+2", 4, [0, 3]), ("rs:2+2", 4, [1, 2])],
)
def test_when_nodes_run_out_what_was_lost_is_computed_and_everything_is_saved(
    host: Host, tmp_path: Path, scheme: str, count: int, lost: list[int]
) -> None:
    run = PreparedRun(tmp_path, count)
    run.save(10, scheme)
    newest = run.save(13, scheme)
    with Nodes(host, tmp_path, nodes=count, run=str(run.home)) as nodes:
        nodes.start(*range(count))
        in_training(nodes, run, count)
        for index in lost:
            run.lose_disk(index)
            nodes.kill(index)
        left = [index for index in range(count) if index not in lost]
        assert [nodes.end_of(index) for index in left] == [exit_codes.TOO_FEW_NODES] * len(left)
        for index in left:
            assert f"{newest} was only on the nodes and is in {run.home} now" in nodes.why(index)
    assert run.names_at_home() == [newest]
    assert run.is_whole_at_home(newest)


def test_a_newest_that_is_not_whole_gives_way_to_the_next_older(host: Host, tmp_path: Path) -> None:
    run = PreparedRun(tmp_path, 3)
    older = run.save(10, "xor:3")
    newest = run.save(13, "single")
    with Nodes(host, tmp_path, nodes=3) as nodes:
        nodes.start(0, 1, 2)
        in_training(nodes, run, 3)
        run.lose_disk(1)
        nodes.kill(1)
        assert nodes.end_of(0) == exit_codes.TOO_FEW_NODES
        assert f"{older} was only on the nodes" in nodes.why(0)
        assert any(f"{newest} is not whole any more" in e["message"] for e in nodes.events(0, "Warned"))
    assert run.names_at_home() == [older]
    assert run.is_whole_at_home(older)


def test_nothing_is_copied_that_lasts_already(host: Host, tmp_path: Path) -> None:
    run = PreparedRun(tmp_path, 2)
    run.save(10, "partner")
    newest = run.save(20, "partner")
    run.commit_at_home(newest)
    with Nodes(host, tmp_path, nodes=2) as nodes:
        nodes.start(0, 1)
        in_training(nodes, run, 2)
        nodes.kill(1)
        assert nodes.end_of(0) == exit_codes.TOO_FEW_NODES
        assert f"the newest checkpoint is {newest}" in nodes.why(0)
        assert not nodes.events(0, "Flushed")
    assert run.names_at_home() == [newest]


def test_nothing_whole_is_said_and_nothing_half_is_left(host: Host, tmp_path: Path) -> None:
    run = PreparedRun(tmp_path, 2)
    name = run.save(10, "single")
    with Nodes(host, tmp_path, nodes=2) as nodes:
        nodes.start(0, 1)
        in_training(nodes, run, 2)
        run.lose_disk(1)
        nodes.kill(1)
        assert nodes.end_of(0) == exit_codes.TOO_FEW_NODES
        assert "nothing is whole" in nodes.why(0)
        assert f"{name} is not whole any more" in nodes.why(0)
    assert run.names_at_home() == []
    assert not any((run.home / "ckpt").iterdir())


def test_a_damaged_copy_counts_as_lost_and_is_computed(host: Host, tmp_path: Path) -> None:
    run = PreparedRun(tmp_path, 3)
    newest = run.save(13, "xor:3")
    damage(run.place(0, newest) / "part0-r00000.bin")
    with Nodes(host, tmp_path, nodes=3) as nodes:
        nodes.start(0, 1, 2)
        workers = in_training(nodes, run, 3)
        nodes.kill(2, signal.SIGTERM)
        assert workers[2].next_line() == "SIGTERM"
        for worker in workers:
            worker.order("exit", 75)
        assert [nodes.end_of(n) for n in range(3)] == [exit_codes.PLEASE_RUN_AGAIN] * 3
    assert run.is_whole_at_home(newest)


@pytest.mark.parametrize("victim", [2, 0], ids=["a member", "the leader"])
def test_a_keeper_that_dies_while_it_writes_its_part_is_done_without(
    host: Host, tmp_path: Path, victim: int
) -> None:
    run = PreparedRun(tmp_path, 4)
    newest = run.save(13, "rs:2+2")
    with Nodes(host, tmp_path, nodes=4) as nodes:
        for index in range(4):
            nodes.start(index, environ={"DIE_WHILE_WRITING": "1"} if index == victim else {})
        in_training(nodes, run, 4)
        run.lose_disk(3)
        nodes.kill(3)
        assert nodes.end_of(victim) == -signal.SIGKILL
        left = [index for index in range(3) if index != victim]
        assert [nodes.end_of(index) for index in left] == [exit_codes.TOO_FEW_NODES] * 2
    assert run.names_at_home() == [newest]
    assert run.is_whole_at_home(newest)


def test_what_a_killed_flush_had_begun_is_begun_anew(host: Host, tmp_path: Path) -> None:
    run = PreparedRun(tmp_path, 2)
    newest = run.save(13, "partner")
    with CheckpointStore(run.home) as store:
        store.claim()
        store.begin(newest, 0)
    (run.home / "ckpt" / newest / "part0-r00000.bin").write_bytes(b"half of it")
    with Nodes(host, tmp_path, nodes=2) as nodes:
        nodes.start(0, 1)
        in_training(nodes, run, 2)
        nodes.kill(1)
        assert nodes.end_of(0) == exit_codes.TOO_FEW_NODES
    assert run.is_whole_at_home(newest)


def test_memory_is_given_back_once_what_was_in_it_lasts(host: Host, tmp_path: Path) -> None:
    run = PreparedRun(tmp_path, 2, local="memory")
    newest = run.save(13, "partner")
    memory = run.place(0, newest).parents[2]
    assert memory.name == run.uuid
    with Nodes(host, tmp_path, nodes=2) as nodes:
        nodes.start(0, 1)
        workers = in_training(nodes, run, 2)
        for worker in workers:
            worker.order("exit", 0)
        assert [nodes.end_of(0), nodes.end_of(1)] == [0, 0]
    assert run.is_whole_at_home(newest)
    assert not memory.exists()
