"""A node without a network cannot tell whether its leader died. It must not end a training that goes on."""

from pathlib import Path

import pytest
from nodes import Host, Nodes, wait_until

from holdfast.jobs import exit_codes

# Waits for limits to pass, again and again: half a minute of nothing.
pytestmark = pytest.mark.torture


def generations(folder: Path) -> int:
    return len(list((folder / "meet" / "worlds").iterdir()))


def test_a_spare_that_is_cut_off_leaves_the_training_alone_and_serves_when_it_is_back(
    host: Host, tmp_path: Path
) -> None:
    marker = tmp_path / "cut off"
    with Nodes(host, tmp_path, nodes=2, spares=1) as nodes:
        nodes.start(0, 1)
        nodes.start(2, environ={"CUT_OFF_WHILE": str(marker)})
        first = nodes.director.expect(2)
        marker.touch()
        wait_until(lambda: any("does not lead any more" in e["message"] for e in nodes.events(2, "Warned")))
        nodes.wait_pulses(10)  # longer than it takes to find that nobody leads
        assert generations(tmp_path) == 1
        marker.unlink()
        nodes.wait_pulses(10)
        nodes.kill(1)
        second = nodes.director.expect(2)
        assert [worker.address for worker in second] == [nodes.address(0), nodes.address(2)]
        assert all(worker.environ["HOLDFAST_ATTEMPT"] == "1" for worker in second)
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(0), nodes.end_of(2)] == [0, 0]
        first[0].wait_gone()


def test_a_node_that_is_cut_off_ends_its_workers_and_is_replaced(host: Host, tmp_path: Path) -> None:
    marker = tmp_path / "cut off"
    with Nodes(host, tmp_path, nodes=2, spares=1) as nodes:
        nodes.start(0)
        nodes.start(1, environ={"CUT_OFF_WHILE": str(marker)})
        nodes.start(2)
        first = nodes.director.expect(2)
        marker.touch()
        first[1].wait_gone()
        second = nodes.director.expect(2)
        assert [worker.address for worker in second] == [nodes.address(0), nodes.address(2)]
        assert nodes.end_of(1) == exit_codes.GIVEN_UP
        assert generations(tmp_path) == 2
        for worker in second:
            worker.order("exit", 0)
        assert [nodes.end_of(0), nodes.end_of(2)] == [0, 0]
