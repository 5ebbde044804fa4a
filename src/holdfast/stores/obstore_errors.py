"""What obstore's errors mean for a store. Its classes are few; the rest is in the server's own words."""

from __future__ import annotations

import re

from obstore import exceptions

from holdfast.errors import StoreDenied, StoreError, StoreFull, StoreNotFound, StoreUnavailable
from holdfast.stores.base import KeyTaken

NOT_PARTIAL = "non-partial response"
_REGION = ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraint", "BareRedirect")
_FULL = ("QuotaExceeded", "InsufficientStorage", "507 ", "EntityTooLarge", "StorageFull")
_CLOCK = ("RequestTimeTooSkewed", "RequestExpired")
_DENIED = ("SignatureDoesNotMatch", "InvalidAccessKeyId", "AccessDenied", "ExpiredToken", "InvalidToken")
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google.internal", "credential")


def bucket_error(error: Exception, doing: str, where: str) -> StoreError:
    """The StoreError that `error` amounts to. `doing` completes "cannot …".

    A missing object is a StoreNotFound without a hint; a missing bucket has one.
    """
    words = str(error)
    text = f"cannot {doing} in {where}: {_brief(words)}"
    if isinstance(error, exceptions.AlreadyExistsError):
        return KeyTaken(text, hint="names are never reused: another process may be writing here")
    if "NoSuchBucket" in words or "ContainerNotFound" in words or "bucket does not exist" in words:
        return StoreNotFound(text, hint="make the bucket first, and check its name and the endpoint")
    if any(word in words for word in _REGION):
        return StoreError(text, hint="the bucket is in another region: set AWS_REGION to it")
    if any(word in words for word in _CLOCK):
        return StoreDenied(
            text, hint="set this machine's clock: the server refuses signatures of another time"
        )
    if isinstance(error, FileNotFoundError):
        return StoreNotFound(text)
    if isinstance(error, exceptions.PreconditionError):
        return StoreNotFound(f"{text} (the object is no longer the one that was opened)")
    if any(word in words for word in _FULL):
        return StoreFull(text, hint="raise the quota or keep fewer checkpoints")
    if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)) or any(
        word in words for word in _DENIED
    ):
        return StoreDenied(
            text,
            hint="check the credentials in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or"
            " their like), and that they may list, read, write and delete there",
        )
    if any(word in words for word in _NO_CREDENTIALS):
        return StoreDenied(
            text,
            hint="no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or their like",
        )
    return StoreUnavailable(
        text, hint="the server may be away for a moment; check the network and AWS_ENDPOINT_URL if you set it"
    )


def _brief(words: str) -> str:
    """One line: obstore appends a dump of its own structures, and servers answer in pages of XML."""
    plain = words.partition("\nDebug source:")[0]
    told = [m[1] for m in re.finditer(r"<(?:Code|Message)>([^<]*)</", plain)]
    head = re.sub(r"<\?xml.*", "", plain, flags=re.DOTALL)
    line = " ".join([*head.split(), *(f"{part}." for part in told)])
    return "".join(c for c in line if c.isprintable())[:400]
