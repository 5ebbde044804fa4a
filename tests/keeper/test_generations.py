"""Membership and generations, with real keepers that are killed, and workers that wait for a word."""

import contextlib
import signal
from pathlib import Path

import pytest
from nodes import Host, Nodes, wait_until

from holdfast.jobs import exit_codes


def test_workers_learn_what_torchrun_would_tell_them(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=2, procs_per_node=2) as nodes:
        nodes.start(0, 1)
        workers = nodes.director.expect(4)
        assert [worker.rank for worker in workers] == [0, 1, 2, 3]
        assert [worker.node for worker in workers] == ["node000", "node000", "node001", "node001"]
        for worker in workers:
            told = worker.environ
            assert told["WORLD_SIZE"] == "4"
            assert told["LOCAL_WORLD_SIZE"] == "2"
            assert int(told["LOCAL_RANK"]) == worker.rank % 2
            assert int(told["GROUP_RANK"]) == worker.rank // 2
            assert told["MASTER_ADDR"] == nodes.address(0)
            assert told["MASTER_PORT"] == workers[0].environ["MASTER_PORT"]
            assert told["TORCHELASTIC_RESTART_COUNT"] == "0"
            assert worker.address == nodes.address(worker.rank // 2)
        for worker in workers:
            worker.order("exit", 0)
        assert [nodes.end_of(0), nodes.end_of(1)] == [0, 0]
        assert nodes.registered() == 0


def test_a_crashed_worker_is_started_again_on_its_node_and_so_is_everybody_else(
    host: Host, tmp_path: Path
) -> None:
    with Nodes(host, tmp_path, nodes=3) as nodes:
        nodes.start(0, 1, 2)
        first = nodes.director.expect(3)
        first[1].kill()
        for worker in first:
            worker.wait_gone()  # the others hang in what they do together, and are killed
        second = nodes.director.expect(3)
        assert [w.address for w in second] == [w.address for w in first]
        assert [w.node for w in second] == [w.node for w in first]
        assert {w.environ["TORCHELASTIC_RESTART_COUNT"] for w in second} == {"1"}
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in range(3)] == [0, 0, 0]
        ended = nodes.events(0, "AttemptEnded")
        assert [event["cause"] for event in ended] == ["signal", "finished"]
        assert "node001, local rank 0" in ended[0]["detail"]


def test_a_spare_takes_the_place_of_a_lost_node_and_survivors_keep_theirs(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=3, spares=1) as nodes:
        nodes.start(0, 1, 2, 3)
        first = nodes.director.expect(3)
        assert [w.address for w in first] == [nodes.address(n) for n in (0, 1, 2)]
        nodes.kill(1)
        for worker in first:
            worker.wait_gone()  # also the one whose keeper died: no orphan goes on training
        second = nodes.director.expect(3)
        assert [w.address for w in second] == [nodes.address(n) for n in (0, 3, 2)]
        assert [w.node for w in second] == ["node000", "node001", "node002"]
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in (0, 2, 3)] == [0, 0, 0]
        assert nodes.events(0, "AttemptEnded")[0]["cause"] == "node lost"


def test_losing_the_leader_is_survived(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=3, spares=1) as nodes:
        nodes.start(0, 1, 2, 3)
        first = nodes.director.expect(3)
        nodes.kill(0)
        for worker in first:
            worker.wait_gone()
        second = nodes.director.expect(3)
        assert [w.address for w in second] == [nodes.address(n) for n in (3, 1, 2)]
        assert second[1].environ["MASTER_ADDR"] == nodes.address(3)
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in (1, 2, 3)] == [0, 0, 0]


def test_leader_after_leader_is_lost_until_too_few_are_left(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=2, spares=2) as nodes:
        nodes.start(0, 1, 2, 3)
        for lost in (0, 1):
            workers = nodes.director.expect(2)
            nodes.kill(lost)
            for worker in workers:
                worker.wait_gone()
        assert [w.address for w in nodes.director.expect(2)] == [nodes.address(n) for n in (2, 3)]
        nodes.kill(2)
        assert nodes.end_of(3) == exit_codes.TOO_FEW_NODES
        assert "1 nodes are left of the 2 that are needed" in nodes.why(3)
        nodes.director.expect_nobody()


def test_leader_and_another_node_lost_at_once(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=3, spares=2) as nodes:
        nodes.start(0, 1, 2, 3, 4)
        nodes.director.expect(3)
        nodes.kill(0)
        nodes.kill(2)
        second = nodes.director.expect(3)
        assert [w.address for w in second] == [nodes.address(n) for n in (3, 1, 4)]
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in (1, 3, 4)] == [0, 0, 0]


def test_a_lost_spare_costs_nothing(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=2, spares=1) as nodes:
        nodes.start(0, 1, 2)
        workers = nodes.director.expect(2)
        nodes.kill(2)
        assert nodes.end_of(2) == -9
        for worker in workers:
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in (0, 1)] == [0, 0]
        nodes.director.expect_nobody()


def test_a_node_that_falls_silent_is_replaced_and_stays_out_when_it_comes_back(
    host: Host, tmp_path: Path
) -> None:
    with Nodes(host, tmp_path, nodes=2, spares=1, silence_seconds=1.0) as nodes:
        nodes.start(0, 1, 2)
        first = nodes.director.expect(2)
        nodes.kill(1, signal.SIGSTOP)  # no connection breaks: only silence tells
        first[0].wait_gone()
        second = nodes.director.expect(2)
        assert [w.address for w in second] == [nodes.address(n) for n in (0, 2)]
        nodes.kill(1, signal.SIGCONT)
        first[1].wait_gone()
        assert nodes.end_of(1) == exit_codes.GIVEN_UP
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in (0, 2)] == [0, 0]


def test_a_leader_that_falls_silent_is_replaced_and_steps_down_when_it_comes_back(
    host: Host, tmp_path: Path
) -> None:
    with Nodes(host, tmp_path, nodes=2, spares=1, silence_seconds=1.0) as nodes:
        nodes.start(0, 1, 2)
        first = nodes.director.expect(2)
        nodes.kill(0, signal.SIGSTOP)
        first[1].wait_gone()
        second = nodes.director.expect(2)
        assert [w.address for w in second] == [nodes.address(n) for n in (2, 1)]
        nodes.kill(0, signal.SIGCONT)
        first[0].wait_gone()
        assert nodes.end_of(0) == exit_codes.GIVEN_UP
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in (1, 2)] == [0, 0]


def test_fewer_nodes_go_on_where_that_is_allowed(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=3, min_nodes=2) as nodes:
        nodes.start(0, 1, 2)
        nodes.director.expect(3)
        nodes.kill(1)
        second = nodes.director.expect(2)
        assert [(w.rank, w.node, w.environ["WORLD_SIZE"]) for w in second] == [
            (0, "node000", "2"),
            (1, "node002", "2"),
        ]
        nodes.start(3)  # one that comes later joins in the next generation
        second[0].kill()
        third = nodes.director.expect(3)
        assert [w.node for w in third] == ["node000", "node001", "node002"]
        assert third[1].address == nodes.address(3)
        nodes.kill(0)
        nodes.kill(3)
        assert nodes.end_of(2) == exit_codes.TOO_FEW_NODES


@pytest.mark.parametrize(
    ("code", "ends_with"),
    [(exit_codes.PLEASE_RUN_AGAIN, exit_codes.PLEASE_RUN_AGAIN), (78, 78), (0, exit_codes.PLEASE_RUN_AGAIN)],
)
def test_a_stop_that_was_asked_for_reaches_the_workers_and_ends_everything(
    host: Host, tmp_path: Path, code: int, ends_with: int
) -> None:
    with Nodes(host, tmp_path, nodes=2, spares=1) as nodes:
        nodes.start(0, 1, 2)
        workers = nodes.director.expect(2)
        nodes.kill(1, signal.SIGTERM)
        assert workers[1].next_line() == "SIGTERM"
        workers[0].order("exit", code)
        # The first one's end may have ended the second already.
        with contextlib.suppress(BrokenPipeError):
            workers[1].order("exit", code)
        assert [nodes.end_of(n) for n in range(3)] == [ends_with] * 3


def test_a_worker_that_must_not_be_restarted_ends_everything(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=2) as nodes:
        nodes.start(0, 1)
        nodes.director.expect(2)[0].order("exit", 78)
        assert [nodes.end_of(0), nodes.end_of(1)] == [78, 78]


def test_workers_that_ask_to_be_run_again_are(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=2) as nodes:
        nodes.start(0, 1)
        for code in (exit_codes.PLEASE_RUN_AGAIN, 0):
            for worker in nodes.director.expect(2):
                worker.order("exit", code)
        assert [nodes.end_of(0), nodes.end_of(1)] == [0, 0]
        assert nodes.events(0, "AttemptEnded")[0]["planned"]


def test_restarts_without_progress_come_to_an_end(host: Host, tmp_path: Path) -> None:
    rules = {"first_pause": 0.0, "no_progress": 2}
    with Nodes(host, tmp_path, nodes=2, rules=rules) as nodes:
        nodes.start(0, 1)
        for _ in range(2):
            nodes.director.expect(2)[1].order("exit", 5)
        assert [nodes.end_of(0), nodes.end_of(1)] == [exit_codes.NO_PROGRESS] * 2
        assert "exit code 5" in nodes.why(1)


def test_the_tally_survives_its_leader(host: Host, tmp_path: Path) -> None:
    rules = {"first_pause": 0.0, "no_progress": 2}
    with Nodes(host, tmp_path, nodes=2, spares=1, rules=rules) as nodes:
        nodes.start(0, 1, 2)
        nodes.director.expect(2)[1].order("exit", 5)
        second = nodes.director.expect(2)
        nodes.kill(0)
        second[1].wait_gone()
        third = nodes.director.expect(2)
        assert {w.environ["HOLDFAST_ATTEMPT"] for w in third} == {"1"}
        third[0].order("exit", 5)
        assert [nodes.end_of(1), nodes.end_of(2)] == [exit_codes.NO_PROGRESS] * 2


def test_a_command_that_does_not_exist_is_not_tried_again(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=2) as nodes:
        nodes.start(0, 1, command=["/does/not/exist"])
        assert [nodes.end_of(0), nodes.end_of(1)] == [exit_codes.NOT_FOUND] * 2


def test_a_hanging_worker_is_noticed_and_everybody_starts_again(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=2, hang={"silence": 0.5}) as nodes:
        nodes.start(0, 1)
        first = nodes.director.expect(2)
        first[1].beat(tmp_path / "run")
        first[0].wait_gone()
        for worker in nodes.director.expect(2):
            worker.order("exit", 0)
        assert [nodes.end_of(0), nodes.end_of(1)] == [0, 0]
        assert nodes.events(0, "AttemptEnded")[0]["cause"] == "hang"


def test_keepers_that_were_started_differently_do_not_meet(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=2) as nodes:
        nodes.start(0)
        nodes.start(1, nodes=3)
        assert nodes.end_of(1) == 99
        assert "start the same command on every node" in (tmp_path / "keeper1.err").read_text()
        nodes.start(2)
        for worker in nodes.director.expect(2):
            worker.order("exit", 0)
        assert [nodes.end_of(0), nodes.end_of(2)] == [0, 0]


def test_too_few_that_ever_came_is_said_in_time(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=3, join_seconds=0.5) as nodes:
        nodes.start(0, 1)
        assert [nodes.end_of(0), nodes.end_of(1)] == [exit_codes.TOO_FEW_NODES] * 2
        assert "2 of 3 nodes came within 0.5 s" in nodes.why(0)


def test_the_next_job_gives_every_machine_the_node_it_was(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=3) as nodes:
        nodes.start(0, 1, 2)
        nodes.director.expect(3)
        for index in range(3):
            nodes.kill(index)  # nobody could clean up
        assert [nodes.end_of(index) for index in range(3)] == [-9] * 3
        nodes.start(2, 1, 0)
        second = nodes.director.expect(3)
        assert [w.address for w in second] == [nodes.address(n) for n in range(3)]
        assert {w.environ["HOLDFAST_ATTEMPT"] for w in second} == {"0"}
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(n) for n in range(3)] == [0, 0, 0]


def test_a_shared_file_system_that_is_away_for_a_while_is_waited_for(host: Host, tmp_path: Path) -> None:
    with Nodes(host, tmp_path, nodes=2, storage_pause=0.05) as nodes:
        nodes.start(0, 1)
        first = nodes.director.expect(2)
        worlds = tmp_path / "meet" / "worlds"
        worlds.rename(tmp_path / "away")  # a training that runs does not mind
        first[0].kill()
        wait_until(lambda: any("founded yet" in e["message"] for e in nodes.events(0, "Warned")))
        (tmp_path / "away").rename(worlds)
        for worker in nodes.director.expect(2):
            worker.order("exit", 0)
        assert [nodes.end_of(0), nodes.end_of(1)] == [0, 0]
