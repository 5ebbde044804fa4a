"""The whole exception tree. Classes say who caused it; messages say what failed, where, and what to do.

HoldfastError
├── SetupError              your call: wrong arguments, an untrackable value, contradictory settings
│   ├── UsageError          the command line or a setting cannot be read: exit code 2
│   └── RunInUse            another live process owns this run
├── SaveError               a save did not become durable; training may go on
│   ├── TornSnapshot        a tensor changed while it was being copied; the copy was thrown away
│   ├── OutcomeUnknown      this rank cannot tell whether the others committed; what it wrote must stay
│   └── Fenced              a newer writer has taken over this run; this process must not commit
├── RestoreError            a checkpoint could not be loaded
│   ├── NoValidCheckpoint   the store holds checkpoints, and none of them is whole
│   ├── CorruptCheckpoint   bytes differ from what was committed
│   ├── NewerFormat         a newer holdfast wrote it; stepping back behind it would lose work
│   └── IncompatibleState   the checkpoint is whole but does not fit these objects
├── StoreError              the world: disk, network, permissions
│   ├── StoreNotFound       nothing there
│   ├── StoreFull           no space or quota left
│   ├── StoreDenied         read-only or forbidden
│   └── StoreUnavailable    may work later: I/O error, stale handle, timeout
└── InternalError           our bug: please report it
"""

from __future__ import annotations


class HoldfastError(Exception):
    """Base of every error holdfast raises on purpose.

    `hint` says what to do about it and is part of the printed message.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message}; {hint}" if hint else message)


class SetupError(HoldfastError): ...


class UsageError(SetupError): ...


class RunInUse(SetupError): ...


class SaveError(HoldfastError): ...


class TornSnapshot(SaveError): ...


class OutcomeUnknown(SaveError): ...


class Fenced(SaveError): ...


class RestoreError(HoldfastError): ...


class NoValidCheckpoint(RestoreError): ...


class CorruptCheckpoint(RestoreError): ...


class NewerFormat(RestoreError): ...


class IncompatibleState(RestoreError): ...


class StoreError(HoldfastError): ...


class StoreNotFound(StoreError): ...


class StoreFull(StoreError): ...


class StoreDenied(StoreError): ...


class StoreUnavailable(StoreError): ...


class InternalError(HoldfastError): ...


def torch_is_missing(what: str) -> SetupError:
    return SetupError(f"{what} needs PyTorch, which is not installed", hint="pip install 'holdfast[torch]'")
