"""What the log says of a copy that was passed over."""

from __future__ import annotations

import logging

from holdfast.tiers.named_tier import Fallback

log = logging.getLogger("holdfast")


def say_fallback(fallback: Fallback) -> None:
    what = (
        f"{fallback.file} of {fallback.checkpoint}" if fallback.file else fallback.checkpoint or "a listing"
    )
    log.warning("holdfast: %s in %s cannot be used: %s", what, fallback.tier, fallback.why)
