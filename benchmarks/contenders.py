"""One class per way to save a training, all behind the same five verbs, each in its best setting on a CPU.

A contender must not do anything that a careful user of that library would not do.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.optim.optimizer import register_optimizer_step_pre_hook

import holdfast
from workload import Training, tensors_of

LIMIT = 600.0  # seconds; no wait in a benchmark is longer


class Contender:
    """How a benchmark drives any of them.

    `save` is what the training thread calls after a step, `step` is the optimizer step behind whatever wait
    the contender needs, `finish` returns when the files are whole, and on stable storage.
    """

    name = "?"
    asynchronous = False
    # Seconds of the last save spent between a finished copy and durable files, where that is known.
    write_seconds: float | None = None

    def __init__(self, training: Training, folder: Path) -> None:
        self.training = training
        self.folder = folder
        self.newest: Path | None = None
        folder.mkdir(parents=True)

    @classmethod
    def reopened(cls, training: Training, folder: Path, newest: Path | None) -> Contender:
        """In another process than the one that saved: able to load `newest`, and nothing else."""
        again = cls.__new__(cls)
        again.training, again.folder, again.newest = training, folder, newest
        again._prepare_to_load()
        return again

    def _prepare_to_load(self) -> None: ...

    def after_loading(self) -> None:
        """The end of what `reopened` began."""

    def save(self, step: int) -> None:
        raise NotImplementedError

    def guard(self) -> AbstractContextManager[Any]:
        """Entered before the optimizer changes anything; entering may wait."""
        return nullcontext()

    def step(self) -> float:
        """Run the optimizer step; returns the seconds spent waiting for the save before it."""
        begin = time.perf_counter()
        with self.guard():
            waited = time.perf_counter() - begin
            self.training.optimizer.step()
        return waited

    def end_step(self) -> None:
        """What this contender wants to be told after a step without a save."""

    def finish(self) -> None:
        """Wait until the last save is complete."""

    def load(self) -> None:
        raise NotImplementedError

    def files(self) -> list[Path]:
        return sorted(p for p in self.folder.rglob("*") if p.is_file())

    def clear(self) -> None:
        """Remove what was saved so far; never timed."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None: ...

    def _target(self, step: int) -> Path:
        self.newest = self.folder / f"step-{step}"
        return self.newest

    def _loaded_from(self) -> Path:
        if self.newest is None:
            raise RuntimeError(f"{self.name}: nothing was saved yet")
        return self.newest


class Idle(Contender):
    """Training without checkpoints: what everyone else is compared with."""

    name = "no checkpoints"

    @classmethod
    def without_folder(cls, training: Training) -> Idle:
        idle = cls.__new__(cls)
        idle.training = training
        return idle

    def save(self, step: int) -> None: ...


class TorchSave(Contender):
    """torch.save alone: returns with the data in the page cache, where a power cut takes it."""

    name = "torch.save"

    def save(self, step: int) -> None:
        torch.save(self.training.state(), self._target(step))

    def load(self) -> None:
        state = torch.load(self._loaded_from(), weights_only=True)
        self.training.model.load_state_dict(state["model"])
        self.training.optimizer.load_state_dict(state["optimizer"])


class TorchSaveSynced(TorchSave):
    """torch.save and fsync: what a durable checkpoint costs by hand."""

    name = "torch.save + fsync"

    def save(self, step: int) -> None:
        super().save(step)
        sync_tree(self._loaded_from())


class Safetensors(Contender):
    """safetensors for the tensors, a JSON string in its metadata for the rest, then fsync."""

    name = "safetensors + fsync"

    def save(self, step: int) -> None:
        target = self._target(step)
        groups = self.training.optimizer.state_dict()["param_groups"]
        save_file(tensors_of(self.training.state()), target, metadata={"groups": json.dumps(groups)})
        sync_tree(target)

    def load(self) -> None:
        tensors = load_file(self._loaded_from())
        prefix = "model."
        self.training.model.load_state_dict(
            {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        )
        # Its tensors are windows into the mapped file; a training must not keep those, so they are copied.
        with torch.no_grad():
            for path, live in tensors_of(self.training.optimizer.state_dict(), "optimizer").items():
                live.copy_(tensors[path])


class DcpSave(Contender):
    """torch.distributed.checkpoint, blocking. It syncs its data files by itself."""

    name = "dcp.save"

    def save(self, step: int) -> None:
        dcp.save(self.training.state(), checkpoint_id=self._target(step), no_dist=True)

    def load(self) -> None:
        state = self.training.state()
        dcp.load(state, checkpoint_id=self._loaded_from(), no_dist=True)
        self.training.model.load_state_dict(state["model"])
        self.training.optimizer.load_state_dict(state["optimizer"])


class DcpAsync(DcpSave):
    """dcp.async_save as a first-time user calls it: staging blocks, into new memory each time."""

    name = "dcp.async_save, fresh stager"
    asynchronous = True
    stager: DefaultStager | None = None

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._staged: Future[Any] | None = None
        self._written: Future[Any] | None = None

    def save(self, step: int) -> None:
        response = dcp.async_save(
            self.training.state(), checkpoint_id=self._target(step), async_stager=self.stager, no_dist=True
        )
        if isinstance(response, Future):
            self._written = response
        else:
            self._staged, self._written = response.staging_completion, response.upload_completion

    def guard(self) -> AbstractContextManager[Any]:
        if self._staged is not None:
            self._staged.result(LIMIT)
            self._staged = None
        return nullcontext()

    def finish(self) -> None:
        self.guard()
        if self._written is not None:
            self._written.result(LIMIT)
            self._written = None

    def close(self) -> None:
        self.finish()
        if self.stager is not None:
            self.stager.close()


class DcpAsyncCached(DcpAsync):
    """dcp.async_save with one stager kept, so that its buffers are reused; the copy still blocks."""

    name = "dcp.async_save, cached stager"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.stager = DefaultStager(_staging(in_background=False))


class DcpAsyncStaged(DcpAsync):
    """The best DCP has: cached buffers, and the copy runs behind forward and backward."""

    name = "dcp.async_save, async staging"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.stager = DefaultStager(_staging(in_background=True))


def _staging(in_background: bool) -> StagingOptions:
    # Pinned memory and non-blocking copies need an accelerator; shared memory only serves other processes.
    return StagingOptions(
        use_pinned_memory=False,
        use_shared_memory=False,
        use_async_staging=in_background,
        use_non_blocking_copy=False,
    )


class TorchCheckpointing(Contender):
    """torch_checkpointing: asynchronous staging into shared memory, a process of its own writes.

    It never calls fsync, so `finish` adds one; otherwise it would be compared while still volatile.
    """

    name = "torch_checkpointing"
    asynchronous = True

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._prepare_to_load()
        self._manager.prewarm_staging(training.state())
        self._written: Future[Any] | None = None

    def _prepare_to_load(self) -> None:
        # Imported here because it starts a process: only where it takes part.
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.checkpoint_process import CheckpointProcessConfig
        from torch_checkpointing.config import AsyncCheckpointSaverConfig
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        # Its direct I/O passes unaligned buffers, which ext4 refuses (EINVAL) and the save fails.
        plain_files = LocalFileSystemStorageConfig(use_direct_io=False)
        saving = AsyncCheckpointSaverConfig(
            process_config=CheckpointProcessConfig(subprocess_init_timeout_secs=300)
        )
        self._manager = CheckpointManager(CheckpointManager.Config(storage_config=plain_files, save=saving))

    def save(self, step: int) -> None:
        self._written = self._manager.save(str(self._target(step)), self.training.state())

    def guard(self) -> AbstractContextManager[Any]:
        return self._manager.lock()

    def finish(self) -> None:
        if self._written is not None:
            self._written.result(LIMIT)
            self._written = None
            sync_tree(self._loaded_from())

    def load(self) -> None:
        state = self._manager.load(str(self._loaded_from()), into=self.training.state())
        self.training.model.load_state_dict(state["model"])
        self.training.optimizer.load_state_dict(state["optimizer"])

    def after_loading(self) -> None:
        self._manager.close()

    def close(self) -> None:
        self._manager.close()


class Holdfast(Contender):
    """holdfast with its defaults, saving when told to and writing to the disk under test."""

    name = "holdfast"
    asynchronous = True

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        # The fence is a hook of every optimizer's step; hooks run in order, so two more tell its wait.
        self._before_fence = self._after_fence = 0.0
        before = register_optimizer_step_pre_hook(self._note_before)
        self.run = holdfast.Run(
            folder / "run", every="1000000000 steps", model=training.model, optimizer=training.optimizer
        )
        self.run.__enter__()
        after = register_optimizer_step_pre_hook(self._note_after)
        self._hooks = (before, after)
        self._handle: Any = None

    def _note_before(self, *_: Any) -> None:
        self._before_fence = time.perf_counter()

    def _note_after(self, *_: Any) -> None:
        self._after_fence = time.perf_counter()

    def save(self, step: int) -> None:
        self.end_step()
        # As the policy saves: what is asked for by name is copied at once.
        self._handle = self.run._require_open().saves.now("benchmark", by_name=False)

    def step(self) -> float:
        self.training.optimizer.step()
        return self._after_fence - self._before_fence

    def end_step(self) -> None:
        self.run.end_step()
        # A run turns Ctrl-C into a request to end the loop; a benchmark has to obey it as well.
        if self.run.stopping:
            raise KeyboardInterrupt

    def finish(self) -> None:
        if self._handle is not None:
            self._handle.wait(LIMIT)
            self.write_seconds = self._handle.persist_seconds
            self._handle = None

    def load(self) -> None:
        into = {"model": self.training.model, "optimizer": self.training.optimizer}
        holdfast.restore(self.folder / "run", into=into)

    def clear(self) -> None:
        """holdfast prunes by itself, behind training: that belongs to its cost."""

    def close(self) -> None:
        self.finish()
        for hook in self._hooks:
            hook.remove()
        self.run.__exit__(None, None, None)


def sync_tree(path: Path) -> None:
    """fsync a file, or every file below a folder, and the folders that name them."""
    parts = [path, *path.rglob("*")] if path.is_dir() else [path]
    for part in [*parts, path.parent]:
        fd = os.open(part, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


CONTENDERS: tuple[type[Contender], ...] = (
    TorchSave,
    TorchSaveSynced,
    Safetensors,
    DcpSave,
    DcpAsync,
    DcpAsyncCached,
    DcpAsyncStaged,
    TorchCheckpointing,
    Holdfast,
)


def everyone(
    training: Training, folder: Path, kinds: tuple[type[Contender], ...] = CONTENDERS
) -> list[Contender]:
    """These contenders over one training, each with a folder of its own."""
    return [kind(training, folder / kind.__name__) for kind in kinds]
