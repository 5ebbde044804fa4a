"""How an attempt's end crosses the wire. What comes from another node is checked before it is believed."""

from __future__ import annotations

from typing import Any, get_args

from holdfast.errors import StoreError
from holdfast.jobs.attempts import AttemptEnd, Cause

_MAX_DETAIL = 500


def end_to_json(end: AttemptEnd) -> dict[str, Any]:
    return {"cause": end.cause, "detail": end.detail[:_MAX_DETAIL], "returncode": end.returncode}


def end_from_json(raw: Any) -> AttemptEnd:
    if not isinstance(raw, dict) or raw.get("cause") not in get_args(Cause):
        raise StoreError(
            "a keeper told of an end that this version does not know", hint="same holdfast on all nodes"
        )
    return AttemptEnd(raw["cause"], str(raw.get("detail"))[:_MAX_DETAIL], int(raw.get("returncode") or 0))
