"""kill -9 of a real uploading process, at requests of its saves: before, in the middle of, and after them."""

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import textwrap

from fault_proxy import Fault, FaultProxy, fault_proxy
from hidden_uploads import hidden_uploads
from quick_store import bucket_at, store_at

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.read import read_files
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.stores.base import Store
from holdfast.testing.memory_image import image_of
from holdfast.testing.object_servers import BUCKET, ObjectServer
from holdfast.testing.store_contract import save

KILLS = 60 if os.environ.get("HOLDFAST_TORTURE") else 6
MOMENTS = ("cut before", "cut in the body", "cut after")
# 16 MiB and a bit: two parts. Numbers are Python's own generator's, so that parent and child agree.
CHILD = """
    import random, sys
    from holdfast.checkpoints.write import write_checkpoint
    from holdfast.stores.locations import open_store
    from holdfast.testing.memory_image import MemoryImage, image_of
    from holdfast.testing.store_contract import draft
    store = open_store(sys.argv[1])
    epoch = store.claim()
    for step in range(2):
        large = MemoryImage("large.bin", random.Random(epoch * 100 + step).randbytes((16 << 20) + 4321))
        done = write_checkpoint(store, draft(step, writer_epoch=epoch), [image_of(step), large])
        print(done.name, flush=True)
"""


def _killed_at(proxy: FaultProxy, prefix: str, kind: str, number: int, what: str) -> list[str]:
    """Run a writer until its request `number` of that kind; the names it had acknowledged by then."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), f"s3://{BUCKET}/{prefix}"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | proxy.server.environment,
    )
    seen = itertools.count()

    def decide(_: int, request: str) -> Fault | None:
        hit = re.search(kind, request) is not None and next(seen) == number
        return Fault("", what, then=lambda: child.send_signal(signal.SIGKILL)) if hit else None

    proxy.decide = decide
    said, _ = child.communicate(timeout=120)
    assert child.returncode in (0, -signal.SIGKILL)
    return said.split()


def test_a_killed_writer_loses_nothing_it_had_acknowledged(weed: ObjectServer, prefix: str) -> None:
    dice = random.Random(9)
    acknowledged: set[str] = set()
    killed = hidden = 0
    with fault_proxy(weed) as proxy:
        for attempt in range(KILLS):
            # A claim takes about ten requests, a save about fifteen; every third kill meets a part under way.
            kind, number = ("partNumber=", attempt % 4) if attempt % 3 == 0 else ("", dice.randrange(4, 40))
            names = _killed_at(proxy, prefix, kind, number, dice.choice(MOMENTS))
            killed += len(names) < 2
            acknowledged |= set(names)
            hidden += len(hidden_uploads(weed, prefix))
            with store_at(weed, prefix) as heir:
                epoch = heir.claim()
                found = {str(one.name): one for one in committed(heir)}
                assert acknowledged <= set(found)
                for one in found.values():
                    _require_whole(heir, one)
                done = save(heir, 99, writer_epoch=epoch)
                save(heir, 100, writer_epoch=epoch)
                result = prune(heir, Retention(latest=2), Ledger(committed={str(done.name)}))
                assert (result.refused, result.failed) == (None, ())
                acknowledged = set(heir.names())
                # What the dead one left is gone, but for hidden parts: the bucket's rule removes them.
                assert {key.split("/")[1] for key in bucket_at(weed, prefix).keys("ckpt/")} == acknowledged
    assert killed >= KILLS // 2
    assert hidden, "no kill met a part under way: this test no longer tests that it harms nobody"


def _require_whole(store: Store, one: Found) -> None:
    files = read_files(store, one)
    step, epoch = one.name.step, one.name.writer_epoch
    assert files[image_of(step).name] == image_of(step).view(0, image_of(step).size)
    if "large.bin" in files:
        assert files["large.bin"] == random.Random(epoch * 100 + step).randbytes((16 << 20) + 4321)
