"""Slots have one owner each, come back once, and respect the budget."""

import threading

import pytest

from holdfast.errors import InternalError
from holdfast.format.image import TensorSpec, plan_image
from holdfast.staging.memory_budget import available_host_bytes, choose_slots
from holdfast.staging.slots import Slot, SlotPool, anonymous_memory

LAYOUT = plan_image([TensorSpec("w", "F32", (8,))], {})


def make_slot() -> Slot:
    return Slot(["a.safetensors"], [LAYOUT], anonymous_memory)


def test_a_slot_has_its_header_in_place() -> None:
    image = make_slot().images[0]
    assert bytes(image.view(0, LAYOUT.data_start)) == LAYOUT.header


def test_two_leases_are_two_slots_and_a_third_is_refused() -> None:
    pool = SlotPool(make_slot, 2)
    first, second = pool.lease(), pool.lease()
    assert first is not None
    assert second is not None
    assert first.slot is not second.slot
    assert pool.lease() is None
    assert not pool.available
    first.release()
    assert pool.available
    again = pool.lease()
    assert again is not None
    assert again.slot is first.slot


def test_releasing_twice_is_an_error_and_does_not_duplicate_the_slot() -> None:
    pool = SlotPool(make_slot, 1)
    lease = pool.lease()
    assert lease is not None
    lease.release()
    with pytest.raises(InternalError, match="released twice"):
        lease.release()
    assert pool.lease() is not None
    assert pool.lease() is None


def test_a_waiting_lease_gets_the_slot_that_comes_back() -> None:
    pool = SlotPool(make_slot, 1)
    lease = pool.lease()
    assert lease is not None
    got = []
    waiting = threading.Thread(target=lambda: got.append(pool.lease(timeout=30)))
    waiting.start()
    lease.release()
    waiting.join(30)
    assert got[0] is not None
    assert got[0].slot is lease.slot


def test_memory_that_cannot_be_had_does_not_use_up_the_budget() -> None:
    failures = [MemoryError()]

    def make() -> Slot:
        if failures:
            raise failures.pop()
        return make_slot()

    pool = SlotPool(make, 1)
    with pytest.raises(MemoryError):
        pool.lease()
    assert pool.lease() is not None


def test_draining_waits_for_what_is_leased_and_changes_nothing_if_it_does_not_come() -> None:
    pool = SlotPool(make_slot, 2)
    lease = pool.lease()
    assert lease is not None
    assert not pool.drain()
    other = pool.lease()
    assert other is not None
    other.release()
    lease.release()
    assert pool.drain()


@pytest.mark.parametrize(
    ("image", "available", "limit", "slots", "says"),
    [
        (100, 1000, None, 2, "two slots"),
        (400, 1000, None, 2, "two slots"),
        (401, 1000, None, 1, "one slot"),
        (800, 1000, None, 1, "waits for the one before"),
        (801, 1000, None, 0, "streamed and block training"),
        (100, 1000, 199, 1, "limit 199 B"),
        (100, 1000, 99, 0, "limit 99 B"),
        (100, 120, 10**9, 0, "120 B available"),
        (100, 0, None, 0, "no slot"),
    ],
)
def test_the_budget_gives_two_slots_one_or_none(
    image: int, available: int, limit: int | None, slots: int, says: str
) -> None:
    budget = choose_slots(image, available, limit)
    assert budget.slots == slots
    assert says in budget.reason


def test_available_memory_respects_the_control_group() -> None:
    files = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1000 kB\n"}
    assert available_host_bytes(files.get) == 1000 * 1024
    files |= {"/sys/fs/cgroup/memory.max": "500000\n", "/sys/fs/cgroup/memory.current": "100000\n"}
    assert available_host_bytes(files.get) == 400_000
    files |= {"/sys/fs/cgroup/memory.max": "max\n"}
    assert available_host_bytes(files.get) == 1000 * 1024
    files |= {"/sys/fs/cgroup/memory.max": "5", "/sys/fs/cgroup/memory.current": "10"}
    assert available_host_bytes(files.get) == 0
    assert available_host_bytes() > 0


def test_available_memory_respects_the_limit_of_the_jobs_group_and_of_every_group_above_it() -> None:
    job = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    files = {
        "/proc/meminfo": "MemAvailable:    1000 kB\n",
        "/proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/task_0\n",
        f"{job}/memory.max": "500000\n",
        f"{job}/memory.current": "100000\n",
        f"{job}/memory.stat": "anon 50000\ninactive_file 30000\n",
        f"{job}/step_0/memory.max": "max\n",
    }
    assert available_host_bytes(files.get) == 430_000
    group = "/sys/fs/cgroup/memory/slurm/uid_0/job_7"
    files = {
        "/proc/meminfo": "MemAvailable:    1000 kB\n",
        "/proc/self/cgroup": "5:cpu,cpuacct:/slurm\n4:memory:/slurm/uid_0/job_7/step_0\n",
        f"{group}/memory.limit_in_bytes": "300000\n",
        f"{group}/memory.usage_in_bytes": "100000\n",
    }
    assert available_host_bytes(files.get) == 200_000
