"""A program's own checkpoint files as generations in a store: with digests, all or nothing, two kept."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints.file_image import FileImage, FileSign, is_inside, sign_of
from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.read import open_verified
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.verified import Copy, is_good
from holdfast.checkpoints.verify import is_complete, verify, verify_surely
from holdfast.checkpoints.write import CheckpointDraft, Committed, write_checkpoint
from holdfast.clock import Clock
from holdfast.engine.tiers_of_run import TiersOfRun
from holdfast.errors import NoValidCheckpoint, SaveError, StoreError, TornSnapshot
from holdfast.events import CheckpointRejected, Emit, Pruned, SaveCommitted, Warned
from holdfast.format.manifest import FileRecord, utc_text
from holdfast.stores.base import Store
from holdfast.stores.place import CKPT
from holdfast.stores.store import CheckpointStore

# ---- One committed set of a program's files, as its manifest describes it.


@dataclass(frozen=True)
class Generation:
    """One committed set of files. `files` maps the program's own paths to what is stored for each."""

    found: Found
    files: Mapping[str, StoredAs]

    @property
    def name(self) -> str:
        return str(self.found.name)

    @property
    def values(self) -> Mapping[str, Any]:
        return self.found.manifest.values if self.found.manifest else {}


@dataclass(frozen=True)
class StoredAs:
    record: FileRecord
    mode: int
    mtime_ns: int


def read_generation(found: Found) -> Generation | None:
    """What the manifest says of its files; None if this is not a generation of a program's files."""
    manifest = found.manifest
    said = manifest.values.get("files") if manifest else None
    if manifest is None or not isinstance(said, dict):
        return None
    files = {}
    for record in manifest.files:
        entry = said.get(record.name)
        if not isinstance(entry, dict) or not is_inside(entry.get("path")):
            return None
        mode, mtime = entry.get("mode"), entry.get("mtime_ns")
        if type(mode) is not int or type(mtime) is not int or mtime < 0:
            return None
        # Never more than the user's own bits: a manifest must not be able to make a file set-uid.
        files[entry["path"]] = StoredAs(record, mode & 0o777, mtime)
    return Generation(found, files)


log = logging.getLogger("holdfast")


class Generations:
    """The generations of one run. The store must be claimed to keep new ones.

    Kept in `store`, copied to `tiers` behind the program, read from the nearest good copy.
    """

    def __init__(
        self,
        store: CheckpointStore,
        clock: Clock,
        emit: Emit,
        retention: Retention,
        tiers: TiersOfRun | None = None,
    ) -> None:
        self._store = store
        self._tiers = tiers
        self._ladder = None if tiers is None else tiers.ladder()
        self._readable: Store = self._ladder or store
        self._clock = clock
        self._emit = emit
        self._retention = retention
        self._ledger = Ledger()
        self.number = max((one.step for one in committed(self._readable)), default=0)

    @property
    def where(self) -> str:
        return self._store.where

    @property
    def writer_epoch(self) -> int:
        return self._store.writer_epoch

    @property
    def is_complete(self) -> bool:
        """Whether the newest generation says that the work is done."""
        return is_complete(self._readable)

    # ---- keeping

    def start_copying(self) -> None:
        """From now on copies go outward, those first that an earlier attempt did not get around to."""
        if self._tiers is not None:
            self._tiers.start_draining(self._emit)

    def keep(
        self,
        paths: Mapping[str, Path],
        *,
        reason: str,
        complete: bool = False,
        values: Mapping[str, Any] | None = None,
        suffix: str = "",
        signs: Mapping[str, FileSign] | None = None,
    ) -> Committed:
        """Store these files as the next generation: `paths` maps the program's names to where they lie.

        TornSnapshot if one of them is written to meanwhile, or is not the one with the given sign any more;
        then nothing was committed.
        """
        begun = self._clock.monotonic()
        with contextlib.ExitStack() as opened:
            images = []
            for index, (name, path) in enumerate(paths.items()):
                try:
                    image = FileImage(f"file-{index:04d}{suffix}", path)
                except OSError as error:
                    raise SaveError(f"cannot read {path}: {error.strerror}") from error
                opened.callback(image.close)
                if signs is not None and image.sign != signs[name]:
                    raise TornSnapshot(f"{path} changed", hint="it is read again when it rests")
                images.append(image)
            draft = self._draft(paths, images, reason, complete, values or {})
            committed = write_checkpoint(self._store, draft, [_Guarded(image) for image in images])
        self.number = draft.step
        self._ledger.committed.add(str(committed.name))
        self._emit(
            SaveCommitted(
                time=self._clock.wall(), step=draft.step, name=str(committed.name),
                persist_seconds=self._clock.monotonic() - begun, bytes=committed.manifest.total_bytes,
                reason=reason,
            )
        )  # fmt: skip
        if self._tiers is not None:
            self._tiers.committed(str(committed.name), committed.manifest)
        self._prune()
        return committed

    def _draft(
        self,
        paths: Mapping[str, Path],
        images: Sequence[FileImage],
        reason: str,
        complete: bool,
        values: Mapping[str, Any],
    ) -> CheckpointDraft:
        files = {
            image.name: {"path": name, "mode": image.mode, "mtime_ns": image.sign.mtime_ns}
            for name, image in zip(paths, images, strict=True)
        }
        return CheckpointDraft(
            writer_epoch=self._store.writer_epoch,
            step=self.number + 1,
            created=utc_text(self._clock.wall()),
            reason=reason,
            progress={"step": self.number + 1, "complete": complete},
            values={"files": files, **values},
            roles={image.name: "program" for image in images},
        )

    def _prune(self) -> None:
        def tell(name: str, why: str) -> None:
            self._emit(Pruned(time=self._clock.wall(), name=name, why=why))

        try:
            spare = self._tiers.needed if self._tiers is not None else frozenset()
            prune(self._store, self._retention, self._ledger, retired=tell, spare=spare)
        except (StoreError, SaveError) as error:
            # An old generation too many hurts nobody.
            self._emit(Warned(time=self._clock.wall(), message=f"pruning failed: {error.message}"))

    # ---- choosing

    def newest_good(self, suspects: Collection[str] = ()) -> Generation | None:
        """The newest generation of which every byte verifies; None if no tier holds any at all.

        `suspects` are passed over while anything older is whole: the program could not go on from them.
        """
        reasons, second_choice = [], None
        for found in committed(self._readable):
            verdict = verify_surely(self._readable, found)
            if not verdict.is_whole:
                why = "; ".join(verdict.problems)
                reasons.append(f"{found.name}: {why}")
                self._reject(found, why)
                continue
            generation = read_generation(found)
            if generation is None:
                reasons.append(f"{found.name}: it holds no files of a program")
                continue
            if generation.name in suspects:
                second_choice = second_choice or generation
                continue
            if second_choice is not None:
                self._reject(second_choice.found, "the program could not go on from it")
                reasons.append(f"{second_choice.name}: the program could not go on from it")
            for reason in reasons:
                log.warning("holdfast: passed over %s; going on from %s", reason, generation.name)
            self._ledger.resumed_from = generation.name
            return generation
        if second_choice is None and reasons:
            raise NoValidCheckpoint(
                f"{self._readable.where} holds {len(reasons)} generations and none is whole:\n  "
                + "\n  ".join(reasons),
                hint="restore them from another copy, or start afresh with another --run",
            )
        return second_choice

    def newest_known(self) -> Generation | None:
        """The newest of which the manifest can be read, whether or not its stored bytes are whole."""
        return next((one for one in map(read_generation, committed(self._readable)) if one is not None), None)

    def is_whole(self, generation: Generation) -> bool:
        """In the run's own folder, that is: a copy elsewhere does not make one here superfluous."""
        return verify(self._store, generation.found).is_whole

    def _reject(self, found: Found, why: str) -> None:
        self._emit(CheckpointRejected(time=self._clock.wall(), name=str(found.name), why=why))

    def stored_paths(self, generation: Generation, scratch: Path) -> list[Path]:
        """Where the files of a verified generation lie, for a program that can read them there. What is not
        whole here is first copied from the other tiers into `scratch`."""
        if self._tiers is None or self.is_whole(generation):
            folder = Path(self._store.where) / CKPT / generation.name
            return [folder / stored.record.name for stored in generation.files.values()]
        paths = []
        for name, stored in generation.files.items():
            paths.append(scratch / name)
            copy_out(self._readable, generation, stored, paths[-1])
        return paths

    def put_back(self, generation: Generation, folder: Path, present: Collection[str]) -> list[str]:
        """Make its files the ones in `folder`; returns what was set aside to make room."""
        aside = put_back(self._readable, generation, folder, present)
        if self._tiers is not None and self._ladder is not None:
            source = self._tiers.nearest(self._ladder)
            log.info("holdfast: generation %d put back, from the tier %s", generation.found.step, source)
        return aside


class _Guarded:
    """A file image that is checked once more when its last byte was read, before anything is committed."""

    concurrent = False

    def __init__(self, image: FileImage) -> None:
        self.name = image.name
        self._image = image

    @property
    def size(self) -> int:
        return self._image.size

    def view(self, start: int, stop: int) -> memoryview:
        memory = self._image.view(start, stop)
        if stop >= self.size:
            self._image.require_unchanged()
        return memory


# ---- A stored generation back into the program's working folder. Nothing there is deleted: what must make
# room is set aside.

# A folder, and hidden: a file beside the others would match the patterns by which programs find their own.
SET_ASIDE = ".holdfast-set-aside"
PART = ".holdfast-part"


def in_place(generation: Generation, folder: Path) -> bool:
    """Whether the working folder holds exactly these bytes already."""
    return all(_same_bytes(folder / name, stored.record) for name, stored in generation.files.items())


def put_back(store: Store, generation: Generation, folder: Path, present: Collection[str]) -> list[str]:
    """Make the files of `generation` the ones in `folder`; returns what was set aside to make room.

    `present` are the program's files there now. One that the generation does not have would be taken for
    its newest checkpoint.
    """
    names = sorted({*present, *generation.files})
    stored = generation.files
    wrong = [one for one in names if one not in stored or not _same_bytes(folder / one, stored[one].record)]
    aside = set_aside(folder, wrong)
    for name in wrong:
        if name in stored:
            copy_out(store, generation, stored[name], folder / name)
    return aside


def set_aside(folder: Path, names: Collection[str]) -> list[str]:
    """Move what is there of these into a folder of its own; returns where it lies now."""
    there = [name for name in names if os.path.lexists(folder / name)]
    if not there:
        return []
    number = 1
    while (home := folder / SET_ASIDE / str(number)).exists():
        number += 1
    moved = []
    for name in there:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder / name, home / name)
        moved.append(f"{SET_ASIDE}/{number}/{name}")
    return moved


def copy_out(store: Store, generation: Generation, stored: StoredAs, path: Path) -> None:
    """One file of a verified generation to `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + PART)
    with open_verified(store, generation.found, stored.record) as file, open(part, "wb") as out:
        for chunk in file.chunks():
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    os.chmod(part, stored.mode)
    os.utime(part, ns=(stored.mtime_ns, stored.mtime_ns))
    os.replace(part, path)


def _same_bytes(path: Path, record: FileRecord) -> bool:
    sign = sign_of(path)
    if sign is None or sign.size != record.size:
        return False
    return is_good(record, str(path), Copy(str(path), lambda: FileImage(record.name, path)))
