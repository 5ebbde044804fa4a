"""Only one process writes a store: locks for courtesy, epochs for safety, with real processes."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.write import draft_manifest
from holdfast.errors import Fenced, RunInUse, SetupError
from holdfast.stores.owner import Owner, is_alive, launch_of, this_process
from holdfast.stores.posix import PosixIO
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import image_of
from holdfast.testing.store_contract import draft, newest_valid, save

CHILD = """
    import sys
    from holdfast.stores.store import CheckpointStore
    from holdfast.testing.store_contract import save
    store = CheckpointStore(sys.argv[1])
    launch = sys.argv[2] if sys.argv[2:] and sys.argv[2].startswith("elastic") else None
    epoch = store.claim(take_over=len(sys.argv) > 2, launch=launch)
    print("claimed", epoch, flush=True)
    for line in sys.stdin:
        try:
            print("saved", save(store, int(line), writer_epoch=epoch).name, flush=True)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
"""


class Writer:
    """Another process that holds the store and saves when told to."""

    def __init__(self, path: Path, *more: str) -> None:
        command = [sys.executable, "-c", textwrap.dedent(CHILD), str(path), *more]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.answer().startswith("claimed")

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def save(self, step: int) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self, how: int = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        self.process.communicate()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path / "run")
    yield writer
    writer.end()


def test_a_living_writer_is_named_and_not_disturbed(tmp_path: Path, writer: Writer) -> None:
    with pytest.raises(RunInUse) as refused:
        CheckpointStore(tmp_path / "run").claim()
    text = str(refused.value)
    assert f"pid {writer.process.pid}" in text
    assert os.uname().nodename in text
    assert "started 20" in text
    assert writer.save(1).startswith("saved")


def test_a_killed_writer_is_succeeded_at_once_with_a_higher_epoch(tmp_path: Path, writer: Writer) -> None:
    assert writer.save(1).startswith("saved e00000001-")
    writer.end(signal.SIGKILL)
    with CheckpointStore(tmp_path / "run") as heir:
        assert heir.claim() == 2
        assert [found.step for found in committed(heir)] == [1]


def test_a_fenced_writer_is_told_and_commits_nothing_more(tmp_path: Path, writer: Writer) -> None:
    writer.save(100)
    with CheckpointStore(tmp_path / "run") as usurper:
        epoch = usurper.claim(take_over=True)
        save(usurper, 50, writer_epoch=epoch)
        answer = writer.save(101)
        assert answer.startswith("Fenced")
        assert f"pid {os.getpid()}" in answer
        # The usurper's step 50 outranks the old lineage's step 100: epochs order before steps.
        assert [found.step for found in committed(usurper)] == [50, 100]


def test_what_is_left_of_an_earlier_generation_of_a_job_is_fenced_and_not_waited_for(tmp_path: Path) -> None:
    old = Writer(tmp_path / "run", "elastic job 7")
    try:
        assert old.save(1).startswith("saved")
        for launch in (None, "elastic job 8"):
            with pytest.raises(RunInUse):
                CheckpointStore(tmp_path / "run").claim(launch=launch)
        with CheckpointStore(tmp_path / "run") as heir:
            assert heir.claim(launch="elastic job 7") == 2
            assert old.save(2).startswith("Fenced")
            # The job does not make two runs of one process: that is somebody's mistake.
            with pytest.raises(RunInUse):
                CheckpointStore(tmp_path / "run").claim(launch="elastic job 7")
    finally:
        old.end()


def test_a_launch_is_an_elastic_job_or_its_launcher_and_nothing_else() -> None:
    assert launch_of({}) is None
    assert launch_of({"TORCHELASTIC_RUN_ID": "42"}) == "elastic job 42"
    # torchrun calls every job "none" that was given no name: then the process that started this one counts.
    assert f" {os.getppid()} " in (launch_of({"TORCHELASTIC_RUN_ID": "none"}) or "")


def test_a_writer_fenced_between_begin_and_commit_leaves_nothing_visible(tmp_path: Path) -> None:
    old = CheckpointStore(tmp_path / "run")
    begun = draft(1, writer_epoch=old.claim())
    name = str(begun.name)
    old.begin(name, 4096)
    files = (old.write(name, image_of(1)),)
    usurper = Writer(tmp_path / "run", "take over")
    with pytest.raises(Fenced):
        old.publish(name, replace(draft_manifest(old, begun), files=files).to_bytes())
    with pytest.raises(Fenced):
        save(old, 2)
    with pytest.raises(Fenced):
        old.retire(name)
    assert old.names() == []
    usurper.end()
    old.release()


def test_a_fenced_writer_prunes_nothing(tmp_path: Path) -> None:
    old = CheckpointStore(tmp_path / "run")
    epoch = old.claim()
    ledger = Ledger()
    for step in (1, 2, 3):
        ledger.committed.add(str(save(old, step, writer_epoch=epoch).name))
    usurper = Writer(tmp_path / "run", "take over")
    with pytest.raises(Fenced):
        prune(old, Retention(latest=2), ledger)
    assert len(old.names()) == 3
    usurper.end()
    old.release()


def test_a_writer_is_fenced_even_by_a_claim_it_cannot_read(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "run") as store:
        epoch = store.claim()
        (tmp_path / "run" / "writers" / "00000002.json").symlink_to("/nowhere")
        with pytest.raises(Fenced, match="another process"):
            save(store, 1, writer_epoch=epoch)


def test_the_same_process_cannot_sit_twice(tmp_path: Path) -> None:
    first = CheckpointStore(tmp_path / "run")
    first.claim()
    with pytest.raises(RunInUse):
        CheckpointStore(tmp_path / "run").claim()
    # And the failed attempt did not drop the first one's lock, as closing the file would have.
    other = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path / "run")],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert "RunInUse" in other.stderr
    first.release()
    with CheckpointStore(tmp_path / "run") as second:
        assert second.claim() == 2


def test_claiming_twice_with_one_store_is_the_same_claim(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "run") as store:
        assert (store.claim(), store.claim(), store.writer_epoch) == (1, 1, 1)


def test_a_forked_child_neither_writes_nor_frees_the_seat(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    epoch = store.claim()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            save(store, 1, writer_epoch=epoch)
        except SetupError:
            store.release()
            try:
                CheckpointStore(tmp_path / "run").claim()
            except RunInUse:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    save(store, 2, writer_epoch=epoch)
    store.release()


def test_an_orphan_of_a_killed_trainer_does_not_keep_the_seat(tmp_path: Path) -> None:
    """A DataLoader worker that survives its trainer inherits every descriptor, but not the record lock."""
    script = textwrap.dedent("""
        import os, signal, sys
        from holdfast.stores.store import CheckpointStore
        CheckpointStore(sys.argv[1]).claim()
        child = os.fork()
        if child == 0:
            sys.stdin.read()  # lives until the test closes this pipe
        else:
            print(child, flush=True)
            signal.pause()
    """)
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    trainer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    assert trainer.stdin is not None
    orphan = int(trainer.stdout.readline())
    trainer.kill()
    trainer.wait()
    os.kill(orphan, 0)  # it is there
    with CheckpointStore(tmp_path / "run") as heir:
        assert heir.claim() == 2
    trainer.stdin.close()
    trainer.stdout.close()


class WithoutLocks(PosixIO):
    def lock(self, parent: int, name: str) -> int | None:
        return None


def test_without_locks_a_provably_living_owner_is_refused(tmp_path: Path, writer: Writer) -> None:
    with pytest.raises(RunInUse, match=f"pid {writer.process.pid}"):
        CheckpointStore(tmp_path / "run", io=WithoutLocks()).claim()
    writer.end()
    assert CheckpointStore(tmp_path / "run", io=WithoutLocks()).claim() == 2


def test_reading_takes_no_lock_and_writes_nothing(tmp_path: Path, writer: Writer) -> None:
    writer.save(1)
    before = sorted((str(p), p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*"))
    reader = CheckpointStore(tmp_path / "run")
    assert newest_valid(reader) is not None
    assert reader.uuid
    assert sorted((str(p), p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*")) == before


def test_reading_a_path_that_is_not_there_creates_nothing(tmp_path: Path) -> None:
    assert committed(CheckpointStore(tmp_path / "absent")) == []
    assert not (tmp_path / "absent").exists()


def test_writing_needs_a_claim(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    with pytest.raises(SetupError, match="claim"):
        store.begin("e00000001-s000000000001-00000001", 1)


def test_a_claim_starts_where_it_is_told_to(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "run") as store:
        assert store.claim(at_least=7) == 7


def test_many_processes_racing_for_a_lockless_store_get_different_epochs(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from holdfast.stores.store import CheckpointStore
        sys.stdin.read()
        print(CheckpointStore(sys.argv[1]).claim(take_over=True))
    """)
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()
        racer.stdin = None
    epochs = sorted(int(racer.communicate()[0]) for racer in racers)
    assert epochs == [1, 2, 3, 4, 5, 6]


def owner(**changes: object) -> Owner:
    return Owner(**{**this_process("now").to_json(), **changes})


def test_aliveness_is_claimed_only_where_it_can_be_known() -> None:
    me = this_process("now")
    assert is_alive(me, me) is True
    assert is_alive(owner(start_ticks=me.start_ticks + 1), me) is False
    assert is_alive(owner(pid=2**22 + 1), me) is False
    assert is_alive(owner(boot_id="another"), me) is None
    assert is_alive(owner(pid_namespace="pid:[1]"), me) is None
    assert is_alive(owner(boot_id=""), owner(boot_id="")) is None


def test_a_zombie_is_dead() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(this_process("").start_ticks).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ticks = int(pipe.read())
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # dead, but not yet collected
    assert is_alive(owner(pid=child, start_ticks=ticks), this_process("now")) is False
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        {"pid": 1},
        {**this_process("").to_json(), "pid": "1"},
        {**this_process("").to_json(), "host": "\x1b[2J"},
    ],
)
def test_a_torn_owner_is_nobody(raw: object) -> None:
    assert Owner.from_json(raw) is None
