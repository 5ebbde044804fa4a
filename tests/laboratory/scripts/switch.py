"""One script, two ways: with holdfast, or with LAB_PLAIN=1 as if holdfast had never been written.

The stand-in does nothing but count: its loops are torch's own. `record` writes each step's loss, to the bit.
"""

import os
import signal
from types import SimpleNamespace
from typing import Any

RUN = os.environ.get("LAB_RUN", "runs/laboratory")
_LOSSES = os.environ.get("LAB_LOSSES")
_DIE_AT = int(os.environ.get("LAB_DIE_AT", "-1"))


class PlainRun:
    """What is left of a script when holdfast is taken out of it."""

    def __init__(self, path: str, **tracked: Any) -> None:
        self.step = self.epoch = 0
        self.resumed = None
        self.extras: dict[str, Any] = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def epochs(self, count):
        while self.epoch < count:
            yield self.epoch
            self.epoch += 1

    def batches(self, loader, name=None, **options):
        return PlainBatches(self, loader)

    def enumerate(self, loader, name=None, start=0):
        return enumerate(self.batches(loader), start)

    def remember(self, **values):
        return SimpleNamespace(**values)

    def serve(self, batches):
        for batch in batches:
            before = self.step
            yield batch
            if self.step == before:
                self._pulled()

    def _pulled(self):
        """Scripts that never say where a step ends: one per batch."""
        if not getattr(self, "says_steps", False):
            self.step += 1

    def steps(self, count, over=None, name=None):
        while self.step < count:
            for item in [self.step] if over is None else over:
                before = self.step
                yield item
                if self.step == before:
                    self.step += 1
                if self.step >= count:
                    return

    def end_step(self, loss=None, **metrics):
        self.says_steps = True
        self.step += 1

    def report(self, **metrics):
        return None


class PlainBatches:
    """Opens the loader when it is iterated, not at the first batch: torch draws seeds there."""

    def __init__(self, run, loader):
        self.run, self.loader = run, loader

    def __iter__(self):
        return self.run.serve(iter(self.loader))


class Plain:
    Run = PlainRun


if os.environ.get("LAB_PLAIN"):
    holdfast: Any = Plain
else:
    import holdfast  # type: ignore[no-redef]  # noqa: F401


def record(step: int, loss: Any) -> None:
    """The loss of the step that is under way; `step` steps are complete. One write: it survives a kill."""
    if _LOSSES:
        value = loss.detach() if hasattr(loss, "detach") else loss
        line = f"{step + 1} {float(value).hex()}\n".encode()
        file = os.open(_LOSSES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(file, line)
        os.close(file)
    if step + 1 == _DIE_AT:
        os.kill(os.getpid(), signal.SIGKILL)
