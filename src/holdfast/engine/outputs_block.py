"""The with block in which a user writes the files of one output."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.checkpoints.file_image import is_inside
from holdfast.checkpoints.retain import Retention, parse_keep
from holdfast.engine.outputs import Outputs, check_name
from holdfast.engine.outputs_files import collect
from holdfast.errors import HoldfastError, SaveError, SetupError
from holdfast.format.names import MAX_STEP
from holdfast.stores.os_errors import store_errors

# A save ahead of it, the place, the votes and the outcome: each is waited for up to the limit.
_WAITS = 4


class Output:
    """Files of yours on their way to being kept.

    >>> with run.output("samples") as out:
    ...     numpy.save(out.path("images.npy"), images)

    Committed when the block ends, on all ranks or on none: an exception inside it, `invalid()`, or a rank
    that cannot write ends the block with an error on every rank. `committed` is then the name it has.
    """

    def __init__(
        self,
        outputs: Outputs,
        name: str,
        step: int,
        *,
        keep: int | str | Retention = 2,
        scratch: str | os.PathLike[str] | None = None,
    ) -> None:
        check_name(name)
        if type(step) is not int or not 0 <= step <= MAX_STEP:
            raise SetupError(f"step={step!r} of the output {name} is not a number of steps")
        self.name = name
        self.step = step
        self.committed: str | None = None
        self._outputs = outputs
        self._keep = parse_keep(keep)
        self._scratch = scratch
        self._save = ""
        self._folder: Path | None = None
        self._promised: set[str] = set()
        self._invalid: str | None = None

    @property
    def folder(self) -> Path:
        """Where the files go until they are committed. Whatever plain files lie there then are kept."""
        if self._folder is None:
            raise SetupError(
                f"the output {self.name} is not open",
                hint="use it in a with block: with run.output(...) as out:",
            )
        return self._folder

    def path(self, name: str | os.PathLike[str]) -> Path:
        """Where to write a file called `name`, which may contain folders; they are made."""
        folder, text = self.folder, os.fspath(name)
        if not is_inside(text):
            raise SetupError(f"{text!r} does not name a file inside the output {self.name}")
        path = folder / text
        with store_errors("make a folder", str(folder)):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._promised.add(path.relative_to(folder).as_posix())
        return path

    def invalid(self, why: str = "its files were said to be invalid") -> None:
        """These files must not be kept: the block will end with a SaveError, on every rank."""
        self._invalid = why

    def __enter__(self) -> Self:
        if self._save:
            raise SetupError("an output is written once", hint="call run.output() again")
        self._save = self._outputs.begin(self.name, self.step)
        try:
            self._outputs.claim(self.name, self._keep)
            self._folder = self._outputs.scratch.make(self._scratch)
        except HoldfastError as error:
            self._outputs.decline(self._save, error.message)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        folder = self.folder
        self._folder = None
        try:
            if error is not None:
                raise SaveError(f"the with block ended with {error!r}")
            if self._invalid is not None:
                raise SaveError(f"the output {self.name} is invalid: {self._invalid}")
            with store_errors("look at the files", str(folder)):
                files = collect(folder, self._promised, self._outputs.rank)
        except HoldfastError as failure:
            self._outputs.scratch.remove(folder)
            self._outputs.failed(self.name, self.step, failure)
            self._outputs.decline(self._save, failure.message)
            if error is not None:
                return
            raise
        handle = self._outputs.commit(self.name, self._save, self.step, files, folder, self._keep)
        self.committed = handle.wait(_WAITS * self._outputs.limit)
