"""Pruning: only what no rule wants, only behind a verified successor, and nothing when in doubt."""

from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Ledger, Pruning, Retention, prune
from holdfast.errors import StoreUnavailable
from holdfast.stores.store import CheckpointStore
from holdfast.testing.failing_io import FailingIO
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.store_contract import draft, save

TWO = Retention(latest=2)


class Bench:
    """A store being written and pruned in memory."""

    def __init__(self, io: MemoryIO | None = None) -> None:
        self.io = io or MemoryIO()
        self.store = CheckpointStore("/run", io=self.io)
        self.epoch = self.store.claim()
        self.ledger = Ledger()

    def save(self, *steps: int) -> list[str]:
        names = [str(save(self.store, step, writer_epoch=self.epoch).name) for step in steps]
        self.ledger.committed.update(names)
        return names

    def damage(self, name: str, file: str = image_of(1).name) -> None:
        tree = self.io.tree
        ckpt = tree.directories[tree.directories[0]["ckpt"]]
        tree.files[tree.directories[ckpt[name]][file]][10] ^= 1

    def steps(self) -> list[int]:
        return sorted(found.step for found in committed(self.store))

    def prune(self, retention: Retention = TWO) -> Pruning:
        return prune(self.store, retention, self.ledger)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_no_rule_wants_goes_and_the_rest_is_explained(bench: Bench) -> None:
    names = bench.save(1, 2, 3, 4)
    heard: list[tuple[str, str]] = []
    result = prune(bench.store, TWO, bench.ledger, retired=lambda name, why: heard.append((name, why)))
    assert result.retired == (names[0], names[1])
    assert [name for name, _ in heard] == names[:2]
    assert dict(result.kept) == {names[2]: "among the latest 2", names[3]: "among the latest 2"}
    assert (result.refused, result.failed, bench.steps()) == (None, (), [3, 4])


def test_one_removed_by_hand_does_not_stop_pruning(bench: Bench) -> None:
    names = bench.save(1, 2, 3, 4, 5)
    bench.store.retire(names[2])
    result = bench.prune()
    assert result.refused is None
    assert bench.steps() == [4, 5]
    assert names[2] not in bench.ledger.committed


def test_a_listing_that_lacks_what_can_be_read_stops_pruning(bench: Bench) -> None:
    names = bench.save(1, 2, 3, 4)
    listed = bench.store.names

    def short() -> list[str]:
        return [name for name in listed() if name != names[3]]

    bench.store.names = short  # type: ignore[method-assign]
    assert names[3] in str(bench.prune().refused)
    assert names[3] in bench.ledger.committed


def test_pruning_twice_is_pruning_once(bench: Bench) -> None:
    bench.save(1, 2, 3)
    bench.prune()
    assert bench.prune().retired == ()
    assert bench.steps() == [2, 3]


def test_an_empty_listing_is_refused(bench: Bench) -> None:
    assert "no checkpoint at all" in str(bench.prune().refused)


def test_a_listing_that_lost_what_we_committed_is_refused(bench: Bench) -> None:
    names = bench.save(1, 2, 3, 4)
    bench.ledger.committed -= {*names[:2]}
    ckpt = bench.io.tree.directories[bench.io.tree.directories[0]["ckpt"]]
    for name in names[2:]:
        del ckpt[name]
    # All that this process has committed: another folder may have been mounted over the right one.
    assert names[2] in str(bench.prune().refused)
    assert bench.steps() == [1, 2]


def test_a_successor_that_does_not_verify_protects_everything(bench: Bench) -> None:
    names = bench.save(1, 2, 3, 4)
    bench.damage(names[3])
    result = bench.prune()
    assert "verify" in str(result.refused)
    assert bench.steps() == [1, 2, 3, 4]


def test_a_successor_whose_manifests_are_damaged_protects_everything(bench: Bench) -> None:
    names = bench.save(1, 2, 3, 4)
    bench.damage(names[3], "MANIFEST")
    bench.damage(names[3], "MANIFEST.2")
    assert bench.prune().refused
    assert len(committed(bench.store)) == 4


def test_while_only_one_verifies_nothing_goes(bench: Bench) -> None:
    names = bench.save(1, 2, 3, 4)
    for name in names[:3]:
        bench.damage(name)
    assert "verify" in str(bench.prune().refused)
    assert bench.steps() == [1, 2, 3, 4]


def test_a_retirement_that_was_cut_off_is_no_checkpoint_and_is_swept(bench: Bench) -> None:
    names = bench.save(1, 2, 3)
    tree = bench.io.tree
    place = tree.directories[tree.directories[tree.directories[0]["ckpt"]][names[0]]]
    place["MANIFEST.dead"] = place.pop("MANIFEST")
    bench.ledger.committed.discard(names[0])
    assert bench.steps() == [2, 3]
    assert bench.prune().swept == (names[0],)


def test_a_damaged_second_is_replaced_by_the_next_whole_one(bench: Bench) -> None:
    names = bench.save(1, 2, 3, 4)
    bench.damage(names[2])
    result = bench.prune()
    # 3 stays because the rule says so, 2 because it is the second that verifies.
    assert bench.steps() == [2, 3, 4]
    assert dict(result.kept)[names[1]] == "among the newest 2 that verify"


def test_damaged_checkpoints_are_left_for_inspection(bench: Bench) -> None:
    names = bench.save(1, 2, 3, 4)
    bench.damage(names[0], "MANIFEST")
    bench.damage(names[0], "MANIFEST.2")
    result = bench.prune()
    assert result.retired == (names[1],)
    assert "left for inspection" in dict(result.kept)[names[0]]


def test_what_the_run_resumed_from_stays_until_two_of_its_own_verify() -> None:
    first = Bench()
    origin = first.save(1, 2, 3)[0]
    first.store.release()
    second = Bench(first.io)
    second.ledger.resumed_from = origin
    second.save(10)
    second.prune()
    assert 1 in second.steps()
    second.save(11)
    second.prune()
    assert second.steps() == [10, 11]


def test_verified_once_is_not_read_again(bench: Bench) -> None:
    names = bench.save(1, 2, 3)
    bench.prune()
    # Were it read again, 3 would no longer verify and 2 would have to stay.
    bench.damage(names[2])
    bench.save(4)
    bench.prune()
    assert bench.steps() == [3, 4]


def test_labelled_checkpoints_outlive_everything(bench: Bench) -> None:
    done = save(bench.store, 1, writer_epoch=bench.epoch, keep="submitted")
    bench.save(2, 3, 4, 5)
    result = bench.prune()
    assert bench.steps() == [1, 4, 5]
    assert dict(result.kept)[str(done.name)] == "kept for ever: submitted"


def test_partials_of_the_dead_are_swept_and_those_in_work_are_not() -> None:
    first = Bench()
    first.save(1, 2)
    orphan = str(draft(3, writer_epoch=first.epoch).name)
    first.store.begin(orphan, 0)
    first.store.write(orphan, image_of(3))
    first.store.release()
    second = Bench(first.io)
    # Its writer dies: the claim on record is of a process that no longer runs.
    _say_writer_is_dead(first.io, first.epoch)
    working = str(draft(9, writer_epoch=second.epoch).name)
    second.store.begin(working, 0)
    second.save(4)
    result = second.prune()
    assert result.swept == (orphan,)
    second.store.write(working, image_of(9))


def _say_writer_is_dead(io: MemoryIO, epoch: int) -> None:
    from dataclasses import replace

    from holdfast.format.sealed import seal
    from holdfast.stores.owner import this_process

    gone = replace(this_process("then"), start_ticks=1)
    writers = io.tree.directories[io.tree.directories[0]["writers"]]
    io.tree.files[writers[f"{epoch:08d}.json"]][:] = seal({"format": 1, "owner": gone.to_json()})


def test_a_store_that_fails_while_retiring_says_so_and_keeps_the_rest() -> None:
    memory = MemoryIO()
    first = Bench(memory)
    first.save(1, 2, 3, 4, 5)
    first.store.release()

    class RefusesRename(MemoryIO):
        def rename(self, parent: int, old: str, new: str) -> None:
            if new == "MANIFEST.dead":
                raise OSError(5, "Input/output error")
            super().rename(parent, old, new)

    bench = Bench(RefusesRename(memory.tree))
    bench.save(6)
    result = bench.prune()
    assert result.retired == ()
    assert len(result.failed) == 1
    assert "Input/output" in result.failed[0][1]
    assert bench.steps() == [1, 2, 3, 4, 5, 6]


def test_a_store_that_cannot_list_raises_and_deletes_nothing() -> None:
    bench = Bench()
    bench.save(1, 2, 3)
    broken = CheckpointStore("/run", io=FailingIO(bench.io, 1, persistent=True))
    with pytest.raises(StoreUnavailable):
        prune(broken, TWO, bench.ledger)
    assert bench.steps() == [1, 2, 3]


def test_a_real_directory_is_really_emptied(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "run") as store:
        epoch = store.claim()
        ledger = Ledger()
        for step in range(1, 5):
            ledger.committed.add(str(save(store, step, writer_epoch=epoch).name))
        assert len(prune(store, TWO, ledger).retired) == 2
        assert len(list(Path(store.where, "ckpt").iterdir())) == 2
