"""The accelerator path, on a pretended device that copies when told to and notices races."""

from typing import Any

import pytest
import torch
from torch import nn

from holdfast.capture.torch_inflate import inflate_image
from holdfast.capture.torch_plan import encode_values
from holdfast.capture.torch_registry import track
from holdfast.clock import SystemClock
from holdfast.engine.background import Worker
from holdfast.engine.settings import Settings
from holdfast.engine.torch_snapshots import Snapshots, Taken
from holdfast.errors import SaveError, TornSnapshot
from holdfast.staging.torch_fence import Fence
from holdfast.testing.torch_fake_device import FakeDevice, FakeDevices, Race


class Trainer:
    """A model with BatchNorm and a momentum optimizer, its snapshots, and the fence between them."""

    def __init__(self, device: FakeDevice, *, where: str = "all", wait_limit: float = 20.0) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.device = device
        picks = {"all": lambda t: True, "matrices": lambda t: t.dim() == 2}[where]
        self.copier = Worker("holdfast-copy")
        tracked = track({"model": self.model, "opt": self.opt})
        self.snapshots = Snapshots(
            tracked, Settings(wait_limit_seconds=wait_limit), SystemClock(), self.copier,
            devices=FakeDevices(device, picks),
        )  # fmt: skip
        self.fence = Fence([self.opt], self.snapshots.hold_updates, lambda _: None)
        self.train()

    def train(self) -> None:
        self.opt.zero_grad()
        self.model(torch.randn(8, 4)).pow(2).mean().backward()
        self.opt.step()

    def copy(self) -> dict[str, torch.Tensor]:
        return {k: v.clone() for k, v in self.model.state_dict().items()}

    def close(self) -> None:
        self.fence.remove()
        assert self.copier.close(20)


@pytest.fixture
def trainer(request: pytest.FixtureRequest) -> Any:
    made = []

    def make(device: FakeDevice, **options: Any) -> Trainer:
        made.append(Trainer(device, **options))
        return made[-1]

    yield make
    for one in made:
        one.device.hang = False
        one.device.run()
        one.close()


def weights_of(taken: Taken | None) -> dict[str, torch.Tensor]:
    assert taken is not None
    assert taken.snapshot is not None
    assert taken.snapshot.wait(20)
    if taken.snapshot.error:
        raise taken.snapshot.error
    values = encode_values(taken.parts)
    image = taken.snapshot.images[0]
    return inflate_image(memoryview(bytearray(image.view(0, image.size))), values)["model"]


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


def test_a_snapshot_on_the_device_is_chosen_when_memory_allows_it_with_a_margin(trainer: Any) -> None:
    device = FakeDevice(free=1 << 30)
    t = trainer(device)
    before = t.copy()
    taken = t.snapshots.take()
    assert device.calls.count("clone") == 1
    # The clones are ours: training goes on at once, while nothing has reached the host.
    for _ in range(3):
        t.train()
    assert device.pending > 0
    assert "hold" not in device.calls
    device.look()
    device.run()
    assert equal(weights_of(taken), before)
    taken.release()


@pytest.mark.parametrize("share", [1.0, 1.05])
def test_without_a_margin_the_copy_goes_straight_to_the_host(trainer: Any, share: float) -> None:
    probe = FakeDevice()
    total = sum(p.stop - p.start for p in _placements(trainer(probe)))
    device = FakeDevice(free=int(total * share))
    t = trainer(device)
    taken = _take_running(t)
    assert "clone" not in device.calls
    device.run()
    weights_of(taken)
    taken.release()


def _placements(t: Trainer) -> Any:
    taken = t.snapshots.take()
    t.device.run()
    weights_of(taken)
    taken.release()
    return taken.plan.placements


def _take_running(t: Trainer) -> Taken:
    """Straight to the host waits for the buffers: they move at once, the parameters stay queued."""
    t.device.at_once = 1
    return t.snapshots.take()


def test_running_out_of_memory_while_cloning_falls_back_to_the_host(trainer: Any) -> None:
    device = FakeDevice(eager=True)
    t = trainer(device)
    device.fail_next("clone", torch.OutOfMemoryError("taken since"))
    before = t.copy()
    taken = t.snapshots.take()
    t.train()
    assert equal(weights_of(taken), before)
    assert device.races == []
    taken.release()


def test_straight_to_the_host_buffers_come_first_and_updates_wait(trainer: Any) -> None:
    device = FakeDevice(free=0)
    t = trainer(device)
    before = t.copy()
    taken = _take_running(t)
    # The forward pass may change BatchNorm's statistics now: they are on the host already.
    t.train()
    t.train()
    assert device.calls.count("hold") == 1
    device.look()
    assert equal(weights_of(taken), before)
    taken.release()


def test_an_update_that_was_held_back_in_order_is_not_a_torn_snapshot(trainer: Any) -> None:
    """On an accelerator the version moves when the update is queued, long before it runs."""
    device = FakeDevice(free=0)
    t = trainer(device)
    taken = _take_running(t)
    for _ in range(3):
        t.train()
    weights_of(taken)
    assert taken.snapshot.error is None
    taken.release()


def test_the_race_detector_sees_a_write_without_the_fence(trainer: Any) -> None:
    device = FakeDevice(free=0)
    t = trainer(device)
    t.fence.remove()
    taken = _take_running(t)
    t.train()
    with pytest.raises(Race, match="written during its copy"):
        device.look()
    device.run()
    with pytest.raises(TornSnapshot):
        weights_of(taken)
    taken.release()


def test_the_race_detector_sees_a_read_before_the_copy_is_done(trainer: Any) -> None:
    device = FakeDevice()
    t = trainer(device)
    taken = t.snapshots.take()
    memory = taken.snapshot.images[0].memory.view
    with pytest.raises(Race, match="read before its copy was done"):
        device.require_readable(memory)
    device.run()
    device.require_readable(memory)
    weights_of(taken)
    taken.release()


@pytest.mark.parametrize("free", [0, 1 << 30], ids=["straight", "cloned"])
def test_a_write_through_another_path_is_a_torn_snapshot_only_where_it_matters(
    trainer: Any, free: int
) -> None:
    device = FakeDevice(free=free)
    t = trainer(device)
    before = t.copy()
    taken = _take_running(t) if free == 0 else t.snapshots.take()
    with torch.no_grad():
        t.model[0].weight.mul_(2)
    device.run()
    if free:
        assert equal(weights_of(taken), before)
    else:
        with pytest.raises(TornSnapshot, match=r"0\.weight"):
            weights_of(taken)
    taken.release()


@pytest.mark.parametrize("free", [0, 1 << 30], ids=["straight", "cloned"])
def test_a_failed_copy_surfaces_and_the_next_one_works(trainer: Any, free: int) -> None:
    device = FakeDevice(free=free, eager=True)
    t = trainer(device)
    t.snapshots.take().release()  # a slot exists
    device.fail_next("copy", SaveError("the link is down"))
    if free == 0:
        with pytest.raises(SaveError, match="the link is down"):
            t.snapshots.take()
    else:
        taken = t.snapshots.take()
        with pytest.raises(SaveError, match="the link is down"):
            weights_of(taken)
        t.train()
        taken.release()
    for _ in range(4):
        taken = t.snapshots.take()
        before = t.copy()
        assert equal(weights_of(taken), before)
        taken.release()


def test_a_failed_hold_never_reaches_the_optimizer(trainer: Any) -> None:
    device = FakeDevice(free=0)
    t = trainer(device)
    taken = _take_running(t)
    device.fail_next("hold", RuntimeError("stream is gone"))
    t.train()
    device.run()
    with pytest.raises(SaveError, match="cannot hold updates back: stream is gone"):
        weights_of(taken)
    taken.release()


def test_a_device_that_hangs_is_given_up_and_its_memory_is_never_shared(trainer: Any) -> None:
    device = FakeDevice()
    t = trainer(device, wait_limit=0.05)
    device.hang = True
    taken = t.snapshots.take()
    t.train()
    with pytest.raises(SaveError, match="did not finish within"):
        weights_of(taken)
    slot = taken.snapshot.lease.slot
    taken.release()
    # The device may still write into that slot: the next save must use the other one.
    device.hang = False
    other = t.snapshots.take()
    assert other.snapshot.lease.slot is not slot
    device.run()
    weights_of(other)
    other.release()


def test_host_and_device_tensors_mix(trainer: Any) -> None:
    for free in (0, 1 << 30):
        device = FakeDevice(free=free, eager=True)
        t = trainer(device, where="matrices")
        for _ in range(3):
            before = t.copy()
            taken = t.snapshots.take()
            t.train()
            assert equal(weights_of(taken), before)
            taken.release()
        assert device.races == []
        assert "host_memory" in device.calls


def test_clones_are_let_go_of_as_soon_as_their_copies_are_queued(trainer: Any) -> None:
    """Kept until they are copied, they are missing in the next forward pass, which runs out of memory."""
    device = FakeDevice(free=1 << 20)
    one = trainer(device)
    taken = one.snapshots.take()
    assert device.calls.count("clone") == 1
    assert device.pending
    assert device.free == 1 << 20
    before = one.copy()
    device.run()
    assert equal(weights_of(taken), before)


@pytest.mark.parametrize("swap", ["through .data", "as a replayed graph"])
def test_weights_changed_unseen_while_their_copy_is_held_tear_the_snapshot(trainer: Any, swap: str) -> None:
    """Averaged weights swapped in for validation: no version moves, and no optimizer steps."""
    device = FakeDevice(free=0)
    one = trainer(device)
    device.at_once = 1  # what must be copied now; the rest stays in the queue
    taken = one.snapshots.take()
    assert "clone" not in device.calls
    versions = [p._version for p in one.model.parameters()]
    for p in one.model.parameters():
        if swap == "through .data":
            p.data.mul_(0.5)
        else:
            p.detach().numpy()[:] *= 0.5
    assert versions == [p._version for p in one.model.parameters()]
    device.run()
    with pytest.raises(TornSnapshot, match=r"through \.data"):
        weights_of(taken)


def test_a_held_copy_of_what_did_not_change_is_committed(trainer: Any) -> None:
    device = FakeDevice(free=0)
    one = trainer(device)
    device.at_once = 1
    before = one.copy()
    taken = one.snapshots.take()
    one.train()  # the fence: the update queues behind the copy
    device.run()
    assert equal(weights_of(taken), before)
