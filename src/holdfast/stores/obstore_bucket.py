"""S3, Google Cloud Storage and Azure through obstore, the one library that speaks all three.

Its runtime does not survive a fork: a child that touches it would wait for ever, so it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import obstore
import obstore.store

from holdfast.errors import SetupError, StoreError, StoreNotFound, StoreUnavailable
from holdfast.stores.bucket import ObjectState
from holdfast.stores.obstore_errors import NOT_PARTIAL, bucket_error
from holdfast.stores.patience import Patience

T = TypeVar("T")
# Its stubs change from release to release; what we call has not.
_obstore: Any = obstore
_PARTS_AT_ONCE = 4
_STREAM_BYTES = 1 << 20
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_runtime_of: list[int] = []


class ObstoreBucket:
    """Satisfies Bucket. `options` go to obstore as they are: endpoint, region, access_key_id, …"""

    def __init__(self, url: str, *, patience: Patience | None = None, **options: Any) -> None:
        self.where = url
        self._patience = patience or Patience()
        try:
            self._store: Any = _obstore.store.from_url(
                url,
                client_options=_client_options(self._patience, _is_plain_http(options)),
                retry_config=_retry_config(self._patience),
                **options,
            )
        except Exception as error:
            raise SetupError(
                f"{url} cannot be used as an object store: {_first_line(error)}",
                hint="write s3://bucket/path, gs://bucket/path or az://container/path; credentials come from"
                " the environment",
            ) from error

    # ---- what may be repeated at will

    def look(self, key: str) -> ObjectState | None:
        try:
            meta = self._patiently(f"look at {key}", lambda: _obstore.head(self._store, key))
        except StoreNotFound as error:
            if error.hint is not None:
                raise
            return None
        return ObjectState(int(meta["size"]), meta["e_tag"])

    def read(self, key: str, start: int, buffer: memoryview, tag: str | None) -> None:
        if len(buffer):
            self._patiently(f"read {key}", lambda: self._read(key, start, buffer, tag))

    def _read(self, key: str, start: int, buffer: memoryview, tag: str | None) -> None:
        options: dict[str, Any] = {"range": (start, start + len(buffer))}
        if tag is not None:
            options["if_match"] = tag
        try:
            result = _obstore.get(self._store, key, options=options)
        except Exception as error:
            if NOT_PARTIAL not in str(error):
                raise
            # A server that answers a range as if it were everything: read up to it, and throw that away.
            del options["range"]
            _fill(buffer, _obstore.get(self._store, key, options=options), skip=start)
        else:
            _fill(buffer, result, skip=0)

    def keys(self, prefix: str, *, after: str | None = None) -> list[str]:
        def collect() -> list[str]:
            batches = _obstore.list(self._store, prefix.rstrip("/"), offset=after, chunk_size=1000)
            return [meta["path"] for batch in batches for meta in batch]

        return [key for key in self._patiently("list", collect) if key.startswith(prefix)]

    def delete(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        try:
            self._patiently("delete", lambda: _obstore.delete(self._store, list(keys)))
        except StoreNotFound as error:
            if error.hint is not None:
                raise

    # ---- what may not

    def create(self, key: str, data: bytes) -> None:
        self._call(f"write {key}", lambda: _obstore.put(self._store, key, data, mode="create"))

    def upload(self, key: str, pieces: Iterator[memoryview | bytes], *, size: int, part_bytes: int) -> None:
        def send() -> None:
            if size <= part_bytes:
                _obstore.put(self._store, key, b"".join(pieces), use_multipart=False)
            else:
                _obstore.put(self._store, key, pieces, chunk_size=part_bytes, max_concurrency=_PARTS_AT_ONCE)

        self._call(f"upload {key}", send)

    # ---- how

    def _patiently(self, doing: str, call: Callable[[], T]) -> T:
        for attempt in self._patience.tries():
            try:
                return self._call(doing, call)
            except StoreUnavailable:
                if attempt + 1 == self._patience.attempts:
                    raise
        raise AssertionError("a patience allows at least one attempt")

    def _call(self, doing: str, call: Callable[[], T]) -> T:
        _require_own_runtime(self.where)
        try:
            return call()
        except StoreError:
            raise
        except Exception as error:
            raise bucket_error(error, doing, self.where) from error


def _fill(buffer: memoryview, result: Any, *, skip: int) -> None:
    done = -skip
    for piece in result.stream(min_chunk_size=_STREAM_BYTES):
        view = memoryview(piece)[max(0, -done) :]
        wanted = view[: len(buffer) - max(0, done)]
        buffer[max(0, done) : max(0, done) + len(wanted)] = wanted
        done += len(piece)
        if done >= len(buffer):
            return
    raise StoreUnavailable(f"an object ended {len(buffer) - done} bytes before its time")


def _require_own_runtime(where: str) -> None:
    if not _runtime_of:
        _runtime_of.append(os.getpid())
    if _runtime_of[0] != os.getpid():
        raise SetupError(
            f"{where} cannot be used in a forked process",
            hint="start the process afresh (spawn), or use the store only there and not before the fork",
        )


def _client_options(patience: Patience, plain_http: bool) -> dict[str, Any]:
    return {
        "connect_timeout": timedelta(seconds=patience.connect_seconds),
        "timeout": timedelta(seconds=patience.request_seconds),
        "allow_http": plain_http,
    }


def _retry_config(patience: Patience) -> dict[str, Any]:
    return {
        "max_retries": patience.request_retries,
        "retry_timeout": timedelta(seconds=patience.retry_seconds),
        "backoff": {
            "init_backoff": timedelta(seconds=patience.first_pause),
            "max_backoff": timedelta(seconds=patience.longest_pause),
            "base": 2,
        },
    }


def _is_plain_http(options: dict[str, Any]) -> bool:
    endpoint = options.get("endpoint") or next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
    return str(endpoint).startswith("http://")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
