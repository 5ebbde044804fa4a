"""The store of another node, reached by TCP. Every call has a limit; a dead node is an error and no wait."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Self, TypeVar

from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptCheckpoint, StoreDenied, StoreError, StoreUnavailable
from holdfast.format.checksum import ALGORITHM, CHUNK_BYTES, chunk_count, chunk_span
from holdfast.format.manifest import MAX_FILE_BYTES, FileRecord
from holdfast.format.names import is_file_name, parse_checkpoint_name
from holdfast.format.sealed import MAX_SEALED_BYTES, check_seal
from holdfast.stores.base import PAGE, ImageSource, StoreProperties
from holdfast.stores.remote_connections import Connections
from holdfast.stores.wire import SLOWEST_BYTES_PER_SECOND, Channel
from holdfast.stores.wire_errors import error_in
from holdfast.stores.wire_handshake import require_token

MAX_LIST_BYTES = 64 << 20
Answer = TypeVar("Answer")
Take = Callable[[Channel, dict[str, Any]], Answer]


class RemoteStore:
    """Satisfies Store. What it cannot do from afar is retire: each node retires its own.

    Calls may come from several threads; each has a connection to itself. A connection that breaks is replaced
    once within a call, because the other node may have closed it for being idle.

    >>> far = RemoteStore(("10.0.0.7", 40123), token, "local")
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: bytes,
        which: str = "local",
        *,
        clock: Clock | None = None,
        connect_seconds: float = 5.0,
        silence_seconds: float = 30.0,
        connections: int = 4,
    ) -> None:
        self._which = which
        self._silence = silence_seconds
        self._connections = Connections(
            address,
            require_token(token),
            clock if clock is not None else SystemClock(),
            connect_seconds=connect_seconds,
            silence_seconds=silence_seconds,
            most=connections,
        )
        self.where = f"{self._connections.where}/{which}"
        self._described: dict[str, Any] | None = None

    def close(self) -> None:
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- reading

    @property
    def uuid(self) -> str:
        return str(self._description().get("uuid"))

    @property
    def properties(self) -> StoreProperties:
        said = self._description().get("properties")
        names = ("survives_process", "survives_node", "survives_job", "survives_site")
        if not isinstance(said, dict) or set(said) != set(names):
            raise StoreError(f"{self.where} does not describe itself as a store does")
        return StoreProperties(*(said[name] is True for name in names))

    def names(self) -> list[str]:
        said = self._ask_json({"verb": "names"})
        if not isinstance(said, list):
            raise StoreError(f"{self.where} does not list its checkpoints")
        return [name for name in said if isinstance(name, str) and parse_checkpoint_name(name)]

    def manifest(self, name: str) -> bytes:
        data = self._ask({"verb": "manifest", "name": name}, _small_body(MAX_SEALED_BYTES))
        check_seal(data)
        return data

    def held(self, name: str) -> dict[str, int]:
        said = self._ask_json({"verb": "held", "name": name})
        if not isinstance(said, dict):
            raise StoreError(f"{self.where} does not list its files")
        return {f: n for f, n in said.items() if is_file_name(f) and type(n) is int and n >= 0}

    def open(self, name: str, file: str) -> RemoteFile:
        """Unlike a file nearby, it cannot be read any more once that node has retired its checkpoint."""
        size = self._ask({"verb": "size", "name": name, "file": file}, lambda _, answer: answer.get("size"))
        if type(size) is not int or not 0 <= size <= MAX_FILE_BYTES:
            raise StoreError(f"{self.where} does not say how long {file} of {name} is")
        return RemoteFile(self, name, file, size)

    def read_into(self, name: str, file: str, offset: int, buffer: memoryview) -> None:
        stop = offset + len(buffer)

        def take(channel: Channel, answer: dict[str, Any]) -> None:
            if answer["body"] != len(buffer):
                raise StoreError(f"{self.where} sends {answer['body']} bytes instead of {len(buffer)}")
            channel.receive_body(buffer)

        request = {"verb": "read", "name": name, "file": file, "start": offset, "stop": stop}
        self._ask(request, take, size=len(buffer))

    # ---- adding

    def write(
        self, name: str, source: ImageSource, *, expect: FileRecord | None = None, replace: bool = False
    ) -> FileRecord:
        digests = json.dumps(expect.digests).encode() if expect is not None else b""
        request = {
            "verb": "put", "name": name, "file": source.name, "size": source.size, "digests": len(digests),
            "role": expect.role if expect else "", "replace": replace,
        }  # fmt: skip

        def send(channel: Channel) -> None:
            channel.send_body(digests)
            for index in range(chunk_count(source.size)):
                start, stop = chunk_span(index, source.size)
                pages = -(-stop // PAGE) * PAGE
                channel.send_body(source.view(start, pages)[: stop - start])

        said = self._ask(
            request,
            lambda channel, answer: _json_body(channel, answer, self.where),
            size=len(digests) + source.size,
            send=send,
            # Bytes that are produced once cannot be sent twice.
            again=source.concurrent,
        )
        if not isinstance(said, list) or len(said) != chunk_count(source.size):
            raise StoreError(f"{self.where} does not say what it has written")
        record = FileRecord(
            source.name, source.size, str(request["role"]), ALGORITHM, CHUNK_BYTES, tuple(map(str, said))
        )
        if expect is not None and record != expect:
            raise CorruptCheckpoint(f"{self.where} has written other bytes of {source.name} than it was sent")
        return record

    def publish(self, name: str, manifest: bytes) -> None:
        self._ask(
            {"verb": "settle", "name": name},
            lambda _, answer: None,
            size=len(manifest),
            send=lambda channel: channel.send_body(manifest),
        )

    def claim(self, *, at_least: int = 1, take_over: bool = False) -> int:
        """Nothing to claim: a node's store takes whatever its manifests list."""
        return 0

    def release(self) -> None:
        self.close()

    def begin(self, name: str, need_bytes: int) -> None:
        if name in self.names():
            raise StoreError(f"{name} is in {self.where} already", hint="names are never reused")

    def abandon(self, name: str) -> None:
        """Nothing from here: an unfinished place is swept by its own node."""

    def leftovers(self, *, before: str | None = None) -> list[str]:
        return []

    def damaged_records(self, name: str, right: bytes) -> list[str]:
        """Not to be seen from here: its own node looks after both."""
        return []

    def retire(self, name: str) -> None:
        raise StoreDenied(f"{name} in {self.where} can only be retired by its own node")

    # ---- how

    def _description(self) -> dict[str, Any]:
        if self._described is None:
            self._described = self._ask({"verb": "describe"}, lambda _, answer: answer)
        return self._described

    def _ask_json(self, request: dict[str, Any]) -> Any:
        return self._ask(request, lambda channel, answer: _json_body(channel, answer, self.where))

    def _ask(
        self,
        request: dict[str, Any],
        take: Take[Answer],
        *,
        size: int = 0,
        send: Callable[[Channel], None] | None = None,
        again: bool = True,
    ) -> Answer:
        """Send, then `take` the answer; the other node's errors are raised here."""
        limit = self._silence + size / SLOWEST_BYTES_PER_SECOND
        broken: OSError | None = None
        for attempt in range(2 if again else 1):
            try:
                # The other node closes idle connections when it needs the room: what can be sent only once
                # is not trusted to one of those.
                fresh = attempt > 0 or not again
                with self._connections.one(fresh=fresh, wait_seconds=limit) as (channel, _):
                    channel.limit(limit)
                    channel.send({**request, "store": self._which}, body=size if send else 0)
                    if send is not None:
                        send(channel)
                    answer = channel.receive()
                    if "error" not in answer:
                        return take(channel, answer)
                raise error_in(answer, self.where)
            except TimeoutError as error:
                # Whoever was silent for so long will be so again.
                raise StoreUnavailable(
                    f"{self.where} fell silent while asked to {request['verb']}", hint="the node may be down"
                ) from error
            except OSError as error:
                broken = error
        raise StoreUnavailable(
            f"the connection to {self.where} broke while asked to {request['verb']}: {broken}",
            hint="the node may be down",
        ) from broken


class RemoteFile:
    """Satisfies StoredFile. `read_into` may be called from several threads, each over its own connection."""

    def __init__(self, store: RemoteStore, name: str, file: str, size: int) -> None:
        self.size = size
        self._store = store
        self._name = name
        self._file = file

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset + len(buffer) > self.size:
            raise CorruptCheckpoint(
                f"{self._file} of {self._name} in {self._store.where} ends at byte {self.size}"
            )
        self._store.read_into(self._name, self._file, offset, buffer)

    def close(self) -> None:
        """Nothing stays open between two reads."""


def _small_body(limit: int) -> Take[bytes]:
    return lambda channel, answer: channel.receive_bytes(answer["body"], limit)


def _json_body(channel: Channel, answer: dict[str, Any], where: str) -> Any:
    try:
        return json.loads(channel.receive_bytes(answer["body"], MAX_LIST_BYTES))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where} sends something that is not JSON") from error
