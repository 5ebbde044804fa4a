"""The audit must notice every way in which a sample can be lost or repeated, and stay silent otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.data.audit import audit_run
from holdfast.data.audit_log import AuditLog, AuditRecord, read_log
from holdfast.errors import CorruptCheckpoint, StoreError, StoreNotFound

SIZE, BATCH = 20, 4


def handed(served: int, *, epoch: int = 0, indices: list[int] | None = None) -> AuditRecord:
    at = served % (SIZE // BATCH)
    return AuditRecord(
        feed="train",
        served=served,
        epoch=epoch,
        passes=0,
        consumed=(at + 1) * BATCH,
        indices=list(range(at * BATCH, (at + 1) * BATCH)) if indices is None else indices,
        size=SIZE,
        once_each=True,
    )


def ended(served: int, epoch: int = 0) -> AuditRecord:
    return replace(handed(served - 1, epoch=epoch), served=served, indices=[], ended=True)


def write(
    run: Path, attempt: int, records: list[AuditRecord], *, start_step: int = 0, rank: int = 0, world: int = 1
):
    """One attempt in which step n trains on the batch served as number n."""
    now = [0]
    log = AuditLog(run, attempt=attempt, start_step=start_step, step=lambda: now[0], rank=rank, world=world)
    for record in records:
        now[0] = record.served
        log(record)
    log.sync()
    log.close()


def only_violation(run: Path) -> str:
    report = audit_run(run)
    assert not report.ok
    return report.violations[0]


WHOLE = [*(handed(n) for n in range(5)), ended(5)]


def test_a_whole_epoch_is_exactly_once(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE)
    report = audit_run(tmp_path)
    assert report.ok
    (epoch,) = report.passes
    assert (epoch.batches, epoch.samples, epoch.finished, epoch.exactly_once) == (5, 20, True, True)


def test_steps_that_a_crash_undid_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE[:4])
    write(tmp_path, 1, WHOLE[2:], start_step=2)
    report = audit_run(tmp_path)
    assert report.ok, report.violations
    assert (report.attempts, report.undone) == (2, 2)


def test_an_unfinished_epoch_is_no_violation(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE[:3])
    report = audit_run(tmp_path)
    assert report.ok
    assert not report.passes[0].finished


def test_a_sample_that_came_twice_is_named_with_both_places(tmp_path: Path) -> None:
    write(tmp_path, 0, [*WHOLE[:3], handed(3, indices=[12, 13, 5, 15]), *WHOLE[4:]])
    assert only_violation(tmp_path) == (
        "train, epoch 0: index 5 came twice, in step 1 of attempt 0 and in step 3 of attempt 0"
    )


def test_a_sample_that_never_came_is_named(tmp_path: Path) -> None:
    write(tmp_path, 0, [*WHOLE[:3], handed(3, indices=[12, 13, 15]), *WHOLE[4:]])
    assert only_violation(tmp_path) == "train, epoch 0: index 14 never came (1 of 20 are missing)"


def test_an_index_outside_the_dataset_is_named(tmp_path: Path) -> None:
    write(tmp_path, 0, [handed(0, indices=[0, 1, 2, 20])])
    assert "index 20 came, and the dataset ends at 19" in only_violation(tmp_path)


def test_a_resume_too_far_back_is_noticed(tmp_path: Path) -> None:
    # The checkpoint was of step 3, but the data went back to batch 2: batch 2 was trained on twice.
    write(tmp_path, 0, WHOLE[:4])
    write(tmp_path, 1, WHOLE[2:], start_step=3)
    assert "step 2 of attempt 0 was handed out again by attempt 1" in only_violation(tmp_path)


def test_a_resume_too_far_ahead_is_noticed(tmp_path: Path) -> None:
    # The checkpoint was of step 1, but the data went on at batch 3: batch 2 was lost with the model.
    write(tmp_path, 0, WHOLE[:4])
    write(tmp_path, 1, WHOLE[3:], start_step=1)
    assert "step 2 of attempt 0 was not handed out again by attempt 1" in only_violation(tmp_path)


def test_a_skipped_batch_is_noticed_before_the_epoch_ends(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE[:2])
    write(tmp_path, 1, WHOLE[3:4], start_step=3)
    assert only_violation(tmp_path) == "train: batch 2 of the run is in no log"


def test_a_batch_served_twice_in_one_attempt_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, 0, [*WHOLE[:3], WHOLE[2]])
    assert "batch 2 was handed out twice" in only_violation(tmp_path)


def test_ranks_that_continued_at_different_batches_are_noticed(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE[:3])
    write(tmp_path, 1, WHOLE[2:], start_step=2, rank=0, world=2)
    write(tmp_path, 1, WHOLE[3:], start_step=2, rank=1, world=2)
    assert "continued at different batches" in only_violation(tmp_path)


def test_a_rank_without_a_log_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE, rank=0, world=2)
    assert only_violation(tmp_path) == "train: batch 0 is missing from the log of rank 1"


def test_padding_is_counted_apart(tmp_path: Path) -> None:
    last = replace(handed(4, indices=[16, 17, 18, 19, 0]), padding=1)
    write(tmp_path, 0, [*WHOLE[:4], last, WHOLE[5]])
    report = audit_run(tmp_path)
    assert report.ok, report.violations
    assert (report.passes[0].samples, report.passes[0].padding) == (20, 1)


def test_a_dropped_rest_is_no_violation_where_dropping_was_asked_for(tmp_path: Path) -> None:
    for may_drop, run in ((True, tmp_path / "may"), (False, tmp_path / "may not")):
        records = [replace(r, may_drop=may_drop) for r in [*WHOLE[:4], replace(WHOLE[5], served=4)]]
        bigger = [replace(r, size=SIZE - 1) for r in records]  # three are left out
        write(run, 0, bigger)
    assert audit_run(tmp_path / "may").passes[0].left_out == 3
    assert audit_run(tmp_path / "may").ok
    assert "never came" in only_violation(tmp_path / "may not")


def test_two_epochs_and_two_feeds_are_judged_apart(tmp_path: Path) -> None:
    second = [*(handed(n, epoch=1) for n in range(5, 10)), ended(10, epoch=1)]
    valid = [replace(r, feed="valid") for r in WHOLE]
    write(tmp_path, 0, [*WHOLE, *valid, *second])
    report = audit_run(tmp_path)
    assert report.ok, report.violations
    assert [(p.feed, p.epoch, p.samples) for p in report.passes] == [
        ("train", 0, 20), ("train", 1, 20), ("valid", 0, 20),
    ]  # fmt: skip


def test_an_order_of_the_users_own_may_repeat_indices_but_not_batches(tmp_path: Path) -> None:
    own = [replace(r, once_each=False, indices=[1, 1, 1]) for r in WHOLE[:3]]
    write(tmp_path / "a", 0, own)
    assert audit_run(tmp_path / "a").ok
    assert audit_run(tmp_path / "a").passes[0].exactly_once is None
    write(tmp_path / "b", 0, [own[0], own[2]])
    assert "batch 1 of the run is in no log" in only_violation(tmp_path / "b")


@pytest.mark.parametrize("cut", [1, 5, 9, 20])
def test_a_torn_last_record_is_what_a_crash_leaves(tmp_path: Path, cut: int) -> None:
    write(tmp_path, 0, WHOLE[:3])
    (file,) = (tmp_path / "audit").iterdir()
    file.write_bytes(file.read_bytes()[:-cut])
    log = read_log(file)
    assert log is not None
    assert [r.served for r in log.records] == [0, 1]
    assert audit_run(tmp_path).ok


def test_every_shorter_file_is_read_or_empty_but_never_wrong(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE)
    (file,) = (tmp_path / "audit").iterdir()
    data = file.read_bytes()
    whole = read_log(file)
    assert whole is not None
    for length in range(len(data)):
        file.write_bytes(data[:length])
        log = read_log(file)
        if log is not None:
            assert [r.served for r in log.records] == [r.served for r in whole.records][: len(log.records)]


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE)
    (file,) = (tmp_path / "audit").iterdir()
    data = bytearray(file.read_bytes())
    data[-200] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match="damaged at byte"):
        audit_run(tmp_path)


def test_a_foreign_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "000000.00000.log").write_bytes(b"something else entirely")
    with pytest.raises(CorruptCheckpoint, match="not a data audit"):
        audit_run(tmp_path)


def test_a_run_without_an_audit_says_how_to_have_one(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="audit_data=True"):
        audit_run(tmp_path)


def test_an_attempt_is_never_written_over(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE)
    with pytest.raises(StoreError, match="cannot begin the data audit"):
        write(tmp_path, 0, WHOLE)


def test_records_are_as_narrow_as_their_indices(tmp_path: Path) -> None:
    sizes = []
    for attempt, top in enumerate((100, 60_000, 4_000_000_000, 1 << 40)):
        write(tmp_path, attempt, [handed(0, indices=[top - i for i in range(64)])])
        file = sorted((tmp_path / "audit").iterdir())[-1]
        sizes.append(file.stat().st_size)
        log = read_log(file)
        assert log is not None
        assert list(log.records[0].indices) == [top - i for i in range(64)]
    assert [b - a for a, b in pairwise(sizes)] == [64, 128, 256]


def test_keys_of_any_kind_can_be_recorded(tmp_path: Path) -> None:
    record = replace(handed(0), once_each=False, indices=["a.png", ("b", 3), -1])
    write(tmp_path, 0, [record])
    assert audit_run(tmp_path).passes[0].samples == 3


def test_the_audit_runs_without_torch(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE)
    script = "import sys; from holdfast.data.audit import audit_run; r = audit_run(sys.argv[1]); " \
             "assert r.ok; assert 'torch' not in sys.modules"  # fmt: skip
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)


def test_the_command_prints_each_epoch_and_fails_on_a_violation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "good", 0, WHOLE)
    assert main(["data-audit", str(tmp_path / "good")]) == 0
    assert "exactly once" in capsys.readouterr().out
    write(tmp_path / "bad", 0, [*WHOLE[:3], handed(3, indices=[12, 13, 5, 15])])
    assert main(["data-audit", str(tmp_path / "bad")]) == 3
    assert "VIOLATED: train, epoch 0: index 5 came twice" in capsys.readouterr().out
    assert main(["data-audit", "--json", str(tmp_path / "bad")]) == 3
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], len(said["violations"])) == (False, 1)
