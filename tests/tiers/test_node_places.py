"""Where a node keeps its checkpoints and how it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SetupError
from holdfast.testing.memory_image import MemoryImage
from holdfast.tiers.node_places import (
    failure_domain,
    logical_node,
    node_tier,
    nodes_here,
    open_node_store,
    serving_address,
)
from holdfast.tiers.words import Tier, parse_tiers

UUID = "00000000-0000-4000-8000-000000000001"
NAME = "e00000001-s000000000005-00000005"


def test_the_tier_of_a_node_comes_first_and_is_the_only_one() -> None:
    tiers = parse_tiers(["/local", "xor:4", "run every 10"])
    assert node_tier(tiers) is tiers[0]
    assert node_tier(parse_tiers(["run", "/far every 3"])) is None
    two, behind = ["memory", "/local", "partner", "run"], ["run", "/local", "single"]
    some = ["memory every 2", "run"]
    for words in (two, behind, some):
        with pytest.raises(SetupError):
            node_tier(parse_tiers(words))


def test_a_node_is_called_what_the_environment_says_or_by_its_place() -> None:
    assert logical_node({}, 7) == "node007"
    assert logical_node({"HOLDFAST_NODE": "rack1.n3"}, 7) == "rack1.n3"
    with pytest.raises(SetupError, match="no name"):
        logical_node({"HOLDFAST_NODE": "../elsewhere"}, 0)


def test_two_nodes_of_one_machine_do_not_share_a_folder(tmp_path: Path) -> None:
    tier = Tier(str(tmp_path), protect="partner")
    assert nodes_here(tier, UUID) == []
    for node in ("node000", "node001"):
        open_node_store(tier, UUID, node).write(NAME, MemoryImage("a.bin", node.encode()))
    assert nodes_here(tier, UUID) == ["node000", "node001"]
    assert open_node_store(tier, UUID, "node001").held(NAME) == {"a.bin": 7}


def test_a_node_serves_where_others_reach_it() -> None:
    assert serving_address({"HOLDFAST_ADDRESS": "10.1.2.3", "MASTER_ADDR": "x.invalid"}) == "10.1.2.3"
    assert serving_address({"MASTER_ADDR": "127.0.0.1"}) == "127.0.0.1"
    assert serving_address({}) == "127.0.0.1"
    with pytest.raises(SetupError, match="HOLDFAST_ADDRESS"):
        serving_address({"MASTER_ADDR": "no-such-host.invalid"})


@pytest.mark.parametrize(
    ("address", "pattern", "domain"),
    [
        ("root.leaf3.tux7", "switch.switch.node", "root.leaf3"),
        ("s[0-1].tux7", "switch.node", "s[0-1]"),
        ("b8.tux7", "block.node", "b8"),
        ("leaf3.tux7.example.org", "switch.node", "leaf3"),
        ("root..tux7", "switch.switch.node", "root."),
        ("..tux7", "switch.switch.node", None),
        ("tux7", "node", None),
        ("tux7.example.org", "node", None),
        ("tux7", "switch.node", None),
        ("root.leaf3", "switch.switch", None),
        ("", "", None),
    ],
)
def test_slurm_says_what_is_above_the_node(address: str, pattern: str, domain: str | None) -> None:
    said = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    assert failure_domain(said) == domain
    assert failure_domain({**said, "HOLDFAST_FAILURE_DOMAIN": " rack 7 "}) == "rack 7"


def test_where_nobody_says_there_is_no_failure_domain_and_nonsense_is_refused() -> None:
    assert failure_domain({}) is None
    assert failure_domain({"HOLDFAST_FAILURE_DOMAIN": "  "}) is None
    for nonsense in ("a\nb", "x" * 256):
        with pytest.raises(SetupError, match="HOLDFAST_FAILURE_DOMAIN"):
            failure_domain({"HOLDFAST_FAILURE_DOMAIN": nonsense})
