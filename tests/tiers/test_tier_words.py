"""What users write as tiers= is read strictly, and remembered for whoever comes without the script."""

import os
from pathlib import Path

import pytest
from tier_samples import flip

from holdfast.errors import SetupError, StoreError
from holdfast.tiers.tier_list import TierList, recall_tiers, remember_tiers
from holdfast.tiers.words import Tier, parse_tiers


def test_the_words_of_the_documentation() -> None:
    tiers = parse_tiers(
        ["memory", "/local/nvme", "partner", "/lustre/run", "s3://bucket/run every 10, 200 MB/s, keep 3"]
    )
    assert tiers == (
        Tier("memory"),
        Tier("/local/nvme", protect="partner"),
        Tier("/lustre/run"),
        Tier("s3://bucket/run", flush_every=10, bandwidth="200 MB/s", keep=3),
    )
    assert [tier.kind for tier in tiers] == ["memory", "directory", "directory", "objects"]
    assert [tier.is_node_local for tier in tiers] == [True, True, False, False]
    assert tiers[3].bytes_per_second == 200_000_000


@pytest.mark.parametrize("scheme", ["single", "partner", "xor:4", "rs:4+2"])
def test_every_protection_attaches_to_the_tier_before_it(scheme: str) -> None:
    assert parse_tiers(["memory", scheme, "run"])[0].protect == scheme


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("memory", "memory"),
        ([], "no tier outlives"),
        (["memory"], "no tier outlives"),
        (["partner", "/x"], "partner"),
        (["/x", "xor:0"], "xor:0"),
        (["/x", "rs:4"], "rs:4"),
        (["/x", "single", "partner"], "partner"),
        (["s3://b/x", "partner"], "s3://b/x"),
        (["/x evry 10"], "evry 10"),
        (["/x every 0"], "every 0"),
        (["/x every 10 min"], "every 10 min"),
        (["/x every 2, every 3"], "twice"),
        (["/x 12 apples/s"], "apples"),
        (["/x keep 1"], "keep=1"),
        (["/x", "/x"], "/x"),
        ([""], "place of a tier"),
        (["foo"], r"'\./foo'"),
        (["memroy", "run"], "did you mean 'memory'"),
        (["memory", "rnu every 10"], "did you mean 'run'"),
        ([3], "3"),
        ([Tier("run"), None], "None"),
    ],
)
def test_the_word_that_cannot_be_read_is_named(words: object, named: str) -> None:
    with pytest.raises(SetupError, match=named):
        parse_tiers(words)  # type: ignore[arg-type]


def test_variables_are_filled_in_where_the_tier_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    tier = Tier("$NODE_DISK/run")
    monkeypatch.setenv("NODE_DISK", "/mnt/a")
    assert tier.path == "/mnt/a/run"
    monkeypatch.delenv("NODE_DISK")
    with pytest.raises(SetupError, match="NODE_DISK"):
        _ = tier.path


def test_tiers_are_remembered_and_former_ones_stay_readable(tmp_path: Path) -> None:
    assert recall_tiers(tmp_path) == TierList()
    first = parse_tiers(["memory", "/nvme", "single", "run every 5"])
    remember_tiers(tmp_path, first)
    assert recall_tiers(tmp_path) == TierList(first)
    second = parse_tiers(["memory", "run"])
    remember_tiers(tmp_path, second)
    assert recall_tiers(tmp_path) == TierList(second, (first[1],))
    remember_tiers(tmp_path, first)
    assert recall_tiers(tmp_path) == TierList(first)
    assert os.listdir(tmp_path) == ["tiers.json"]


def test_a_damaged_list_is_said_and_not_guessed(tmp_path: Path) -> None:
    remember_tiers(tmp_path, parse_tiers(["run"]))
    flip(tmp_path / "tiers.json", 12)
    with pytest.raises(StoreError, match=r"tiers\.json is damaged"):
        recall_tiers(tmp_path)
