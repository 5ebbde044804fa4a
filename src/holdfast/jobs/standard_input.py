"""Standard input for a command that may be started several times: each attempt reads it from the same place.

A file is opened anew. What comes through a pipe is passed on and remembered, up to a limit. A terminal is
left alone: nobody can type the same twice.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading

# Decks and parameter files are kilobytes; data of this size belongs into a file.
LIMIT_BYTES = 64 << 20
_BLOCK = 1 << 16


class StandardInput:
    """Made once per supervisor, where signals are blocked: its threads must not be those that hear them."""

    def __init__(self, file: int = 0, limit: int = LIMIT_BYTES) -> None:
        self._file = file
        self._limit = limit
        self._start: int | None = None
        self._pipe: _Remembered | None = None
        with contextlib.suppress(OSError):
            mode = os.fstat(file).st_mode
            if stat.S_ISREG(mode):
                self._start = os.lseek(file, 0, os.SEEK_CUR)
            elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                self._pipe = _Remembered(file, limit)

    def for_attempt(self) -> int | None:
        """A file descriptor for the command, to be closed by the caller; None: it has ours."""
        if self._start is not None:
            try:
                file = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                os.lseek(self._file, self._start, os.SEEK_SET)
                return None
            os.lseek(file, self._start, os.SEEK_SET)
            return file
        return None if self._pipe is None else self._pipe.reader()

    @property
    def cannot_repeat(self) -> str | None:
        """Why another attempt would get another input than the first."""
        if self._pipe is None or not self._pipe.is_too_long:
            return None
        return (
            f"its standard input came through a pipe and is longer than {self._limit >> 20} MiB, so that it "
            "cannot be given to another attempt: put it into a file and use < FILE"
        )


class _Remembered:
    """Reads only when an attempt has taken everything before, so that a command that reads nothing costs no
    more than one block."""

    def __init__(self, file: int, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._turn = threading.Lock()
        self._data = bytearray()
        self._ended = False
        self.is_too_long = False

    def reader(self) -> int:
        ours, theirs = os.pipe()
        threading.Thread(target=self._feed, args=(theirs,), name="holdfast-stdin", daemon=True).start()
        return ours

    def _feed(self, to: int) -> None:
        position = 0
        with contextlib.suppress(OSError):  # the attempt has ended, or wants no more
            while block := self._block(position):
                position += len(block)
                _write(to, block)
        os.close(to)

    def _block(self, position: int) -> bytes:
        # An attempt that has ended may wait here for input; what comes then is for all that follow.
        with self._turn:
            if position >= len(self._data) and not self._ended:
                more = os.read(self._file, _BLOCK)
                self._ended = not more
                if len(self._data) + len(more) > self._limit:
                    self.is_too_long = True
                self._data += more
            return bytes(self._data[position : position + _BLOCK])


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
