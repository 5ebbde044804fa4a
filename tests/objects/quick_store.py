"""Stores in a test's own prefix, quick to give up: the servers are on this machine."""

from dataclasses import replace
from typing import Any

from holdfast.stores.locations import bucket_store
from holdfast.stores.obstore_bucket import ObstoreBucket
from holdfast.stores.patience import Patience
from holdfast.stores.store import CheckpointStore
from holdfast.testing.object_servers import BUCKET, ObjectServer

QUICK = Patience(
    attempts=3,
    first_pause=0.02,
    longest_pause=0.1,
    connect_seconds=2,
    request_seconds=20,
    request_retries=2,
    retry_seconds=20,
)
# One request per call: every injected failure is seen by holdfast itself.
NO_RETRIES = replace(QUICK, request_retries=0)


def bucket_at(server: ObjectServer, prefix: str, *, patience: Patience = QUICK) -> ObstoreBucket:
    return ObstoreBucket(f"s3://{BUCKET}/{prefix}", patience=patience, **server.options)


def store_at(
    server: ObjectServer, prefix: str, *, patience: Patience = QUICK, **more: Any
) -> CheckpointStore:
    return bucket_store(bucket_at(server, prefix, patience=patience), patience=patience, **more)
