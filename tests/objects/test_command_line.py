"""The command line at a bucket: it shows what it shows of a folder, and says what only the folder has."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.checkpoints.retain import Retention
from holdfast.cli.main import main
from holdfast.clock import SystemClock
from holdfast.events import Event
from holdfast.programs.generations import Generations
from holdfast.programs.outer_tiers import claim_home, open_tiers, parse_outer
from holdfast.stores import store as stores
from holdfast.stores.locations import open_store
from holdfast.stores.owner import Owner, this_process
from holdfast.testing.object_servers import BUCKET, ObjectServer
from holdfast.testing.store_contract import save

STEPS = 4
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def address(weed: ObjectServer, prefix: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in weed.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{prefix}"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def folder(address: str, tmp_path: Path) -> Path:
    """A run whose every checkpoint is in the bucket too."""
    model = torch.nn.Linear(4, 4)
    path, tiers = tmp_path / "run", ["run", f"{address} every 1, keep 100"]
    with holdfast.Run(path, every="1000 steps", keep=100, tiers=tiers, model=model) as run:
        for _ in run.steps(STEPS):
            with torch.no_grad():
                model.weight += 1
            run.end_step()
            run.save_now().wait()
    return path


def test_list_show_verify_diff_and_export_see_in_the_bucket_what_is_in_the_folder(
    folder: Path, address: str, command: Command, tmp_path: Path
) -> None:
    def answer(verb: str, where: object, *more: object) -> Any:
        code, out, err = command(verb, where, *more, "--json")
        assert code == 0, err
        text = out.replace(str(where).rstrip("/"), "WHERE")
        return json.loads(text)

    for verb, more in [
        ("list", ()),
        ("show", (2,)),
        ("show", ("newest", "--tensors")),
        ("verify", ("--deep",)),
        ("prune", ("--keep", "2")),
    ]:
        assert answer(verb, address, *more) == answer(verb, folder, *more), verb
    assert len(answer("list", address)["checkpoints"]) >= STEPS
    code, out, _ = command("diff", folder, 2, 2, "--other-run", address, "--exit-code")
    assert code == 0, out
    written = [tmp_path / "from-bucket.safetensors", tmp_path / "from-folder.safetensors"]
    for where, target in zip((address, folder), written, strict=True):
        code, _, err = command("export", where, "--to", target)
        assert code == 0, err
    assert written[0].read_bytes() == written[1].read_bytes()


def test_prune_removes_from_the_bucket_what_no_rule_keeps(
    folder: Path, address: str, command: Command
) -> None:
    code, out, err = command("prune", address, "--keep", "2", "--yes")
    assert code == 0, err
    assert f"from {address}" in out
    assert len(open_store(address).names()) == 2
    assert command("verify", address, "--deep")[0] == 0


def test_prune_leaves_a_bucket_alone_whose_writer_may_live_elsewhere(
    folder: Path, address: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(started: str) -> Owner:
        return replace(this_process(started), host="far-away", boot_id="another")

    with monkeypatch.context() as there:
        there.setattr(stores, "this_process", elsewhere)
        store = open_store(address)
        store.claim()
        before = sorted(store.names())
    code, _, err = command("prune", address, "--keep", "2", "--yes")
    assert code == 1
    assert "far-away" in err
    assert "--take-over" in err
    assert sorted(open_store(address).names()) == before
    assert command("prune", address, "--keep", "2", "--yes", "--take-over")[0] == 0
    assert len(open_store(address).names()) == 2


def test_a_bucket_is_said_to_survive_its_site(address: str) -> None:
    assert open_store(address).properties.survives == ("process", "node", "job", "site")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("halt",), ()),
        (("slurm", "status"), ()),
        (("verify",), ("--all-tiers",)),
        (("verify",), ("--data",)),
        (("show",), ("--policy",)),
        (("doctor",), ()),
    ],
)
def test_what_only_the_folder_has_is_said(
    before: tuple[str, ...], after: tuple[str, ...], address: str, command: Command
) -> None:
    store = open_store(address)
    store.claim()
    save(store, 1)
    store.release()
    code, _, err = command(*before, address, *after)
    assert code == 1
    assert "is a bucket" in err


def test_an_address_without_a_run_is_said_to_be_one(address: str, command: Command) -> None:
    code, _, err = command("list", address)
    assert code == 1
    assert f"there is no run at {address}" in err


def test_a_programs_files_come_back_from_a_bucket(address: str, tmp_path: Path) -> None:
    events: list[Event] = []
    clock, keep_two = SystemClock(), Retention(latest=2)
    outer = parse_outer([f"{address} 100 MB/s"])
    state = tmp_path / "state"
    for attempt in range(2):
        with claim_home(str(tmp_path / "run"), outer, clock) as home:
            tiers = open_tiers(home, outer, keep_two, clock)
            assert tiers is not None
            kept = Generations(home, clock, events.append, keep_two, tiers)
            kept.start_copying()
            if attempt == 0:
                state.write_bytes(b"forty-two")
                kept.keep({"state": state}, reason="test")
            else:
                newest = kept.newest_good()
                assert newest is not None
                kept.put_back(newest, tmp_path, present=[])
            tiers.close(60.0)
        if attempt == 0:
            shutil.rmtree(tmp_path / "run")
            state.unlink()
    assert state.read_bytes() == b"forty-two"
