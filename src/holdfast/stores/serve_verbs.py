"""What a node answers: one function per verb. Every field is checked before anything is touched."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from holdfast.errors import CorruptCheckpoint, StoreDenied, StoreError, StoreNotFound
from holdfast.format.checksum import ALGORITHM, CHUNK_BYTES, chunk_count
from holdfast.format.manifest import MAX_FILE_BYTES, FileRecord, parse_manifest
from holdfast.format.names import is_file_name, parse_checkpoint_name
from holdfast.format.sealed import MAX_SEALED_BYTES
from holdfast.stores.base import PAGE
from holdfast.stores.store import CheckpointStore
from holdfast.stores.wire import Channel

MAX_DIGESTS_BYTES = 64 << 20
_BOUNCE_BYTES = 4 << 20


class Verbs:
    """Answers requests from the stores of this node. Safe to use from many connections at once."""

    def __init__(self, stores: Mapping[str, CheckpointStore]) -> None:
        self._stores = dict(stores)
        self._verbs: dict[str, Callable[[Channel, dict[str, Any]], None]] = {
            "describe": self._describe,
            "names": self._names,
            "manifest": self._manifest,
            "held": self._held,
            "size": self._size,
            "read": self._read,
            "put": self._put,
            "settle": self._settle,
        }

    def answer(self, channel: Channel, request: dict[str, Any]) -> None:
        verb = self._verbs.get(str(request.get("verb")))
        if verb is None:
            raise StoreError(f"there is no verb {str(request.get('verb'))[:40]!r}")
        if request["body"] and request["verb"] not in ("put", "settle"):
            raise StoreError(f"{request['verb']} takes no body")
        verb(channel, request)

    # ---- reading

    def _describe(self, channel: Channel, request: dict[str, Any]) -> None:
        store = self._store(request)
        channel.send({"where": store.where, "uuid": store.uuid, "properties": asdict(store.properties)})

    def _names(self, channel: Channel, request: dict[str, Any]) -> None:
        _send_json(channel, self._store(request).names())

    def _manifest(self, channel: Channel, request: dict[str, Any]) -> None:
        data = self._store(request).manifest(_name(request))
        channel.send({}, body=len(data))
        channel.send_body(data)

    def _held(self, channel: Channel, request: dict[str, Any]) -> None:
        _send_json(channel, dict(self._store(request).held(_name(request))))

    def _size(self, channel: Channel, request: dict[str, Any]) -> None:
        file = self._store(request).open(_name(request), _file(request))
        file.close()
        channel.send({"size": file.size})

    def _read(self, channel: Channel, request: dict[str, Any]) -> None:
        store, name, file = self._store(request), _name(request), _file(request)
        start, stop = _natural(request, "start"), _natural(request, "stop")
        with store.descriptor(name, file) as handle:
            if handle is not None:
                _require_range(start, stop, os.fstat(handle).st_size, file)
                channel.send({}, body=stop - start)
                channel.send_file(handle, start, stop)
                # Read once, by somebody else: it must not push this node's training out of the cache.
                os.posix_fadvise(handle, start, stop - start, os.POSIX_FADV_DONTNEED)
                return
        opened = store.open(name, file)
        try:
            _require_range(start, stop, opened.size, file)
            channel.send({}, body=stop - start)
            with mmap.mmap(-1, _BOUNCE_BYTES) as memory, memoryview(memory) as bounce:
                for begin in range(start, stop, _BOUNCE_BYTES):
                    with bounce[: min(_BOUNCE_BYTES, stop - begin)] as piece:
                        opened.read_into(begin, piece)
                        channel.send_body(piece)
        finally:
            opened.close()

    # ---- writing

    def _put(self, channel: Channel, request: dict[str, Any]) -> None:
        store = self._writable(request)
        size, listed = _natural(request, "size"), _natural(request, "digests")
        if size > MAX_FILE_BYTES or request["body"] != size + listed:
            raise StoreError("put: the body is not as long as the file and its digests")
        name, file = _name(request), _file(request)
        digests = _parse_digests(channel.receive_bytes(listed, MAX_DIGESTS_BYTES), size)
        role, replace = str(request.get("role", "")), request.get("replace") is True
        expect = None if digests is None else FileRecord(file, size, role, ALGORITHM, CHUNK_BYTES, digests)
        record = store.write(name, _Arriving(file, size, channel), expect=expect, replace=replace)
        _send_json(channel, list(record.digests))

    def _settle(self, channel: Channel, request: dict[str, Any]) -> None:
        store, name = self._writable(request), _name(request)
        manifest = channel.receive_bytes(request["body"], MAX_SEALED_BYTES)
        if str(parse_manifest(manifest).name) != name:
            raise StoreError(f"the manifest is not the one of {name}")
        store.publish(name, manifest)
        channel.send({})

    # ---- how

    def _store(self, request: dict[str, Any]) -> CheckpointStore:
        store = self._stores.get(str(request.get("store")))
        if store is None:
            raise StoreNotFound(f"this node has no store {str(request.get('store'))[:40]!r}")
        return store

    def _writable(self, request: dict[str, Any]) -> CheckpointStore:
        store = self._store(request)
        if store.needs_claim:
            raise StoreDenied(f"{store.where} is only read from other nodes")
        return store


class _Arriving:
    """Satisfies ImageSource: a body, as it comes from the wire."""

    concurrent = False

    def __init__(self, name: str, size: int, channel: Channel) -> None:
        self.name = name
        self.size = size
        self._channel = channel
        pages = -(-min(size, CHUNK_BYTES) // PAGE) * PAGE
        self._memory = memoryview(mmap.mmap(-1, max(pages, PAGE)))

    def view(self, start: int, stop: int) -> memoryview:
        self._channel.receive_body(self._memory[: min(stop, self.size) - start])
        return self._memory[: stop - start]


def _send_json(channel: Channel, value: Any) -> None:
    data = json.dumps(value).encode()
    channel.send({}, body=len(data))
    channel.send_body(data)


def _name(request: dict[str, Any]) -> str:
    name = request.get("name")
    if not isinstance(name, str) or parse_checkpoint_name(name) is None:
        raise StoreNotFound(f"{str(name)[:80]!r} is not the name of a checkpoint")
    return name


def _file(request: dict[str, Any]) -> str:
    file = request.get("file")
    if not isinstance(file, str) or not is_file_name(file):
        raise StoreNotFound(f"{str(file)[:80]!r} is not the name of a file")
    return file


def _natural(request: dict[str, Any], field: str) -> int:
    value = request.get(field)
    if type(value) is not int or not 0 <= value <= MAX_FILE_BYTES:
        raise StoreError(f"{field} must be a number of bytes")
    return value


def _require_range(start: int, stop: int, size: int, file: str) -> None:
    if not start <= stop <= size:
        raise CorruptCheckpoint(f"{file} has {size} bytes here; {start} to {stop} were asked for")


def _parse_digests(data: bytes, size: int) -> tuple[str, ...] | None:
    """The digests that a file must have; None if its sender does not know them."""
    if not data:
        return None
    try:
        digests = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError("put: the digests are not JSON") from error
    if not isinstance(digests, list) or not all(isinstance(d, str) for d in digests):
        raise StoreError("put: the digests are not a list of texts")
    if len(digests) != chunk_count(size):
        raise StoreError(f"put: {len(digests)} digests for {chunk_count(size)} chunks")
    return tuple(digests)
