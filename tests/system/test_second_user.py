"""A second user of the same machine, with a uid of its own: it reads nothing that is private, plants nothing,
and where it is in the way, a clear message says so."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import StoreDenied
from holdfast.keeper.meeting import Meeting
from holdfast.stores.shared_secret import agree_on_secret
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.memory_folder import memory_folders
from holdfast.tiers.node_places import nodes_here, open_node_store
from holdfast.tiers.opening import open_tier, readable_tiers
from holdfast.tiers.words import parse_tiers

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a second user"),
]
STRANGER = 64321


def as_stranger(work: Callable[[], object]) -> bool:
    """Whether `work`, done by another user in a process of its own, went through."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            os.umask(0)
            work()
            code = 0
        except OSError:
            pass
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def give_away(folder: Path) -> None:
    for parent, folders, files in os.walk(folder):
        for name in (parent, *(os.path.join(parent, one) for one in (*folders, *files))):
            os.chown(name, STRANGER, STRANGER)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder where everybody may make folders, as /tmp and a node's own disk are."""
    with tempfile.TemporaryDirectory(prefix="holdfast-open-") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@pytest.fixture
def memory_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """/dev/shm as the victim sees it, without touching what real runs keep there."""
    with tempfile.TemporaryDirectory(prefix="holdfast-shm-", dir="/dev/shm") as folder:
        os.chmod(folder, 0o1777)
        monkeypatch.setattr("holdfast.tiers.memory_folder.SHM", folder)
        yield Path(folder) / f"holdfast-{os.getuid()}"


def train(path: Path, steps: int, **settings: object) -> tuple[int, float]:
    """Where the training began, and a weight that tells how far it came."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with holdfast.Run(path, every="1 steps", model=model, optimizer=optimizer, **settings) as run:  # type: ignore[arg-type]
        began = run.step
        while run.step < steps:
            model(torch.ones(1, 1)).sum().neg().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.end_step()
    return began, float(model.weight.item())


def test_a_planted_memory_folder_is_not_read_and_keeps_nobody_from_training(
    tmp_path: Path, memory_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert as_stranger(memory_root.mkdir)
    train(tmp_path / "run", 2)
    run_uuid = CheckpointStore(tmp_path / "run").uuid
    planted = memory_root / run_uuid / "slot-0"
    assert as_stranger(lambda: planted.mkdir(parents=True))
    assert as_stranger(lambda: (planted / "MANIFEST.e99999999-s000000009999-00000000").write_bytes(b"x"))
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert train(tmp_path / "run", 4, tiers=["memory", "run"]) == (2, 4.0)
    assert "no checkpoints are kept in memory" in caplog.text
    assert memory_folders(wall=0.0) == []


@pytest.mark.parametrize("what", ["folder", "file", "link", "closed folder"])
def test_a_supervisor_starts_whatever_lies_in_its_place_in_memory(
    memory_root: Path, tmp_path: Path, what: str
) -> None:
    def plant() -> None:
        if what == "file":
            memory_root.write_text("x")
        elif what == "link":
            memory_root.symlink_to("/etc")
        else:
            memory_root.mkdir(mode=0o700 if what == "closed folder" else 0o777)

    assert as_stranger(plant)
    code = (
        "import sys; from holdfast.tiers import memory_folder;"
        f"memory_folder.SHM = {str(memory_root.parent)!r};"
        f"from holdfast.cli.main import main; sys.exit(main(['run', '--run', {str(tmp_path / 'run')!r},"
        " '--', 'true']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_a_run_planted_in_a_folder_open_to_all_is_refused(
    open_to_all: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "other", 7)
    shutil.copytree(tmp_path / "other", open_to_all / "run")
    give_away(open_to_all / "run")
    with pytest.raises(StoreDenied, match=f"belongs to {STRANGER}"):
        train(open_to_all / "run", 8)
    with pytest.raises(StoreDenied, match="HOLDFAST_TRUST"):
        holdfast.checkpoints(open_to_all / "run")
    monkeypatch.setenv("HOLDFAST_TRUST", str(STRANGER))
    assert [one.step for one in holdfast.checkpoints(open_to_all / "run")][:1] == [7]


def test_a_node_folder_made_by_another_user_is_neither_read_nor_written(open_to_all: Path) -> None:
    run_uuid = str(uuid.uuid4())
    (tier,) = parse_tiers([str(open_to_all), "single"])
    assert as_stranger(lambda: (open_to_all / run_uuid / "node000" / "ckpt").mkdir(parents=True))
    with pytest.raises(StoreDenied, match=f"belongs to {STRANGER}"):
        nodes_here(tier, run_uuid)
    with pytest.raises(StoreDenied, match=f"belongs to {STRANGER}"):
        open_node_store(tier, run_uuid, "node000")


def test_a_checkpoint_planted_in_a_tier_on_a_disk_open_to_all_is_refused(
    open_to_all: Path, tmp_path: Path
) -> None:
    words = [str(open_to_all), "single", "run"]
    train(tmp_path / "run", 2, tiers=words)
    run_uuid = CheckpointStore(tmp_path / "run").uuid
    tier = parse_tiers(words)[0]
    assert len(open_tier(tier, str(tmp_path / "run"), run_uuid).names()) > 0
    give_away(open_to_all / "ckpt")
    with pytest.raises(StoreDenied, match=f"belongs to {STRANGER}"):
        open_tier(tier, str(tmp_path / "run"), run_uuid).names()


def test_what_a_node_keeps_cannot_be_read_by_others(
    open_to_all: Path, tmp_path: Path, memory_root: Path
) -> None:
    os.chmod(tmp_path, 0o755)
    train(tmp_path / "run", 2, tiers=["memory", str(open_to_all), "single", "run"])
    secret = tmp_path / "run" / "nodes.token"
    agree_on_secret(str(secret))
    private = [secret, memory_root]
    private += [one for one in (open_to_all / "ckpt").rglob("*") if one.is_file()]
    assert len(private) > 3
    for path in private:

        def look(path: Path = path) -> object:
            return list(path.iterdir()) if path.is_dir() else path.read_bytes()

        assert not as_stranger(look), path


def test_keepers_do_not_meet_in_a_folder_of_another_user(open_to_all: Path) -> None:
    assert as_stranger(lambda: (open_to_all / "meet").mkdir(mode=0o777))
    with pytest.raises(StoreDenied, match=f"belongs to {STRANGER}"):
        Meeting(str(open_to_all / "meet"))


def test_memory_is_read_only_where_the_run_has_recorded_it(tmp_path: Path, memory_root: Path) -> None:
    train(tmp_path / "run", 2)
    assert [tier.name for tier in readable_tiers(tmp_path / "run")] == ["run"]


def test_a_claim_far_beyond_all_others_does_not_end_the_numbers(tmp_path: Path) -> None:
    train(tmp_path / "run", 2)
    (tmp_path / "run" / "writers" / "99999999.json").write_bytes(b"x")
    (tmp_path / "run" / "ckpt" / "e99999999-s000000000001-00000000").mkdir()
    assert train(tmp_path / "run", 4) == (2, 4.0)
    assert train(tmp_path / "run", 6) == (4, 6.0)
    with CheckpointStore(tmp_path / "run") as store:
        assert store.claim() < 10
