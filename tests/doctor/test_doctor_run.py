"""The doctor finds each planted problem, names it once, and is silent about a healthy run."""

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoints.file_image import FileImage
from holdfast.checkpoints.write import CheckpointDraft, write_checkpoint
from holdfast.cli.main import main
from holdfast.clock import SystemClock
from holdfast.doctor.checks import RUN_CHECKS, examine
from holdfast.doctor.facts import Facts, gather, mount_of, parse_mounts
from holdfast.events import AttemptEnded, Event, RunStarted, SaveCommitted, SaveFailed, SnapshotTaken
from holdfast.format.manifest import utc_text
from holdfast.stores.journal import Journal
from holdfast.stores.owner import this_process
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.memory_folder import default_root, write_owner
from holdfast.tiers.tier_list import remember_tiers
from holdfast.tiers.words import Tier

ROOT_ON_DISK = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
NOW = time.time()


def commit(folder: Path, step: int, *, created: float = NOW, versions: dict[str, str] | None = None) -> None:
    payload = folder.parent / "payload"
    payload.write_bytes(bytes(range(256)) * 64)
    image = FileImage("model.bin", payload)
    with CheckpointStore(folder) as store:
        epoch = store.claim()
        draft = CheckpointDraft(
            writer_epoch=epoch, step=step, created=utc_text(created), reason="test",
            environment={"versions": versions or {}},
        )  # fmt: skip
        write_checkpoint(store, draft, [image])
    image.close()
    journal(folder, saved(step, NOW - 100 + step))


def journal(folder: Path, *events: Event) -> None:
    Journal(folder).append(*events)


def saved(step: int, at: float) -> SaveCommitted:
    return SaveCommitted(time=at, step=step, name="x", persist_seconds=0.1, bytes=1, reason="test")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / "run"
    folder.mkdir(parents=True, mode=0o755)
    journal(folder, RunStarted(time=NOW - 110, step=0, host="a", pid=1, writer_epoch=1))
    commit(folder, 10)
    commit(folder, 20)
    remember_tiers(folder, [Tier("run"), Tier("s3://bucket/run", flush_every=10)])
    return folder


def look(
    run: Path, tmp_path: Path, *, mounts: str = "", environ: dict[str, str] | None = None, deep: bool = True
) -> Facts:
    table = tmp_path / "mountinfo"
    table.write_text(ROOT_ON_DISK + mounts)
    return gather(
        run, SystemClock(), {"HOME": "/home/somebody", "PATH": "", **(environ or {})},
        mount_table=table, shared_memory=tmp_path, deep=deep,
    )  # fmt: skip


def names(facts: Facts) -> list[str]:
    return [finding.check for finding in examine(facts)]


def test_a_healthy_run_has_no_findings(run: Path, tmp_path: Path) -> None:
    assert examine(look(run, tmp_path)) == []


def test_a_folder_where_no_run_is_yet_has_no_findings(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    assert examine(look(tmp_path / "place", tmp_path)) == []
    # It may also be a path with a typing error.
    assert names(look(tmp_path / "not" / "yet", tmp_path)) == ["not-there"]
    assert not (tmp_path / "not").exists()


# ---- problems planted in the real run


def _damage(run: Path) -> None:
    newest = sorted((run / "ckpt").iterdir())[-1] / "model.bin"
    data = bytearray(newest.read_bytes())
    data[5000] ^= 1
    newest.write_bytes(data)


def _delete_all_but_one(run: Path) -> None:
    shutil.rmtree(sorted((run / "ckpt").iterdir())[0])


def _rare(run: Path) -> None:
    journal(run, saved(30, NOW - 7), saved(40, NOW - 7 + 3 * 3600))


def _dear(run: Path) -> None:
    for i in range(10):
        journal(
            run,
            SnapshotTaken(
                time=NOW - 50 + i, step=i, mode="blocking", stall_seconds=0.4, copy_seconds=0.4, bytes=1
            ),
        )


def _fail(run: Path) -> None:
    journal(run, SaveFailed(time=NOW, step=30, error="no space left"))


def _attempts_in_vain(run: Path) -> None:
    for attempt in range(2):
        journal(
            run,
            AttemptEnded(
                time=NOW, attempt=attempt, cause="exit code", detail="1", planned=False, seconds=1.0,
                exit_code=1, signal=None, checkpoint=None,
            ),
        )  # fmt: skip


def _leave_unfinished(run: Path) -> None:
    for number in range(3):
        (run / "ckpt" / f"e00000001-s{number:012d}-0000000{number}").mkdir()


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (lambda run: run.chmod(0o777), "permissions"),
        (_damage, "damaged"),
        (_delete_all_but_one, "keep-count"),
        (_rare, "frequency"),
        (_dear, "frequency"),
        (_fail, "failing-saves"),
        (_attempts_in_vain, "no-progress"),
        (lambda run: commit(run, 30, created=NOW + 3600), "clock"),
        (lambda run: commit(run, 30, versions={"numpy": "0.9.1"}), "version-drift"),
        (_leave_unfinished, "leftovers"),
        (lambda run: (run / "tiers.json").unlink(), "single-location"),
        (lambda run: remember_tiers(run, [Tier("run"), Tier(str(run.parent / "b"))]), "single-location"),
    ],
)
def test_a_problem_of_the_run_is_found(
    plant: Callable[[Path], None], check: str, run: Path, tmp_path: Path
) -> None:
    plant(run)
    found = examine(look(run, tmp_path))
    assert check in [finding.check for finding in found]
    assert all(finding.what and finding.fix for finding in found)


def test_memory_of_a_dead_run_is_found_after_minutes_and_not_before(run: Path, tmp_path: Path) -> None:
    root = tmp_path / Path(default_root()).name
    left = root / "0a1b2c3d-0000-4000-8000-000000000000"
    left.mkdir(parents=True)
    dead = dataclasses.replace(this_process(""), pid=2**22 + 1, start_ticks=1)
    write_owner(str(left), dead, "/runs/forgotten")
    (left / "image").write_bytes(bytes(4096))
    assert "memory-left" not in names(look(run, tmp_path))
    long_ago = NOW - 700
    for file in left.iterdir():
        os.utime(file, (long_ago, long_ago))
    os.utime(left, (long_ago, long_ago))
    [finding] = [f for f in examine(look(run, tmp_path)) if f.check == "memory-left"]
    assert "/runs/forgotten" in finding.what
    assert str(left) in finding.fix


# ---- problems of the place and the machine


def test_a_run_in_memory_is_found(run: Path, tmp_path: Path) -> None:
    assert names(look(run, tmp_path, mounts=f"30 22 0:5 / {run.parent} rw - tmpfs tmpfs rw\n")) == [
        "location-in-memory"
    ]


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs /dev/shm")
def test_the_real_mount_table_knows_memory() -> None:
    mount = mount_of(Path("/dev/shm"), parse_mounts(Path("/proc/self/mountinfo").read_text()))
    assert mount is not None
    assert mount.is_in_memory


def test_a_run_in_a_cluster_home_is_found(run: Path, tmp_path: Path) -> None:
    facts = look(run, tmp_path, environ={"HOME": str(run.parent), "SCRATCH": "/scratch/me"})
    assert names(facts) == ["location-in-home"]
    assert "/scratch/me" in examine(facts)[0].fix


def test_a_run_on_the_disk_of_a_node_is_found(run: Path, tmp_path: Path) -> None:
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_END_TIME": str(int(NOW) + 3600)}
    assert names(look(run, tmp_path, environ=job)) == ["location-on-node"]


@pytest.mark.parametrize("option", ["soft", "nolock", "local_lock=flock"])
def test_dangerous_nfs_options_are_found(option: str, run: Path, tmp_path: Path) -> None:
    mounts = f"30 22 0:5 / {run.parent} rw - nfs4 server:/x rw,vers=4.2,{option}\n"
    assert names(look(run, tmp_path, mounts=mounts)) == ["nfs-options"]


def test_ordinary_nfs_is_fine(run: Path, tmp_path: Path) -> None:
    assert names(look(run, tmp_path, mounts=f"30 22 0:5 / {run.parent} rw - nfs4 s:/x rw,hard\n")) == []


def test_a_time_limit_that_nobody_can_see_is_found(run: Path, tmp_path: Path) -> None:
    mounts = f"30 22 0:5 / {run.parent} rw - lustre mgs:/x rw,flock\n"
    facts = look(run, tmp_path, mounts=mounts, environ={"SLURM_JOB_ID": "999999999"})
    assert names(facts) == ["time-limit"]


def test_one_shared_file_system_is_place_enough(run: Path, tmp_path: Path) -> None:
    (run / "tiers.json").unlink()
    mounts = f"30 22 0:5 / {run.parent} rw - lustre mgs:/x rw,flock\n"
    assert names(look(run, tmp_path, mounts=mounts)) == []


def test_an_unread_checkpoint_is_said(run: Path, tmp_path: Path) -> None:
    assert names(look(run, tmp_path, deep=False)) == ["unverified"]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"writable": False}, "permissions"),
        ({"free_bytes": 1000}, "free-space"),
        ({"free_files": 3}, "free-space"),
        ({"shared_memory_bytes": 64 << 20}, "shared-memory"),
        ({"problem": "I/O error"}, "readable"),
    ],
)
def test_a_problem_of_the_machine_is_found(
    change: dict[str, object], check: str, run: Path, tmp_path: Path
) -> None:
    facts = dataclasses.replace(look(run, tmp_path), **change)  # type: ignore[arg-type]
    assert names(facts) == [check]


def test_a_login_node_without_torch_is_no_drift(run: Path, tmp_path: Path) -> None:
    commit(run, 30, versions={"torch": "2.13.0"})
    facts = look(run, tmp_path)
    there = {**facts.versions, "torch": "not installed"}
    assert names(dataclasses.replace(facts, versions=there)) == []


def test_an_escaped_mount_point_is_read() -> None:
    mounts = parse_mounts("30 22 0:5 / /data/my\\040runs rw - nfs s:/x rw,soft\ngarbage\n")
    assert [mount.point for mount in mounts] == ["/data/my runs"]


def test_there_are_at_least_twelve_checks_and_each_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    checks = [check.__name__.replace("_", "-") for check in RUN_CHECKS]
    assert len(checks) >= 12
    assert [check for check in checks if f"`{check}`" not in page] == []


# ---- the command


def test_the_command_says_what_and_how_to_fix_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _damage(run)
    assert main(["doctor", str(run)]) == 1
    said = capsys.readouterr().out
    assert "[damaged]" in said
    assert "fix: " in said


def test_the_command_speaks_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _fail(run)
    assert main(["doctor", str(run), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"][str(run)]
    assert "failing-saves" in [finding["check"] for finding in findings]
