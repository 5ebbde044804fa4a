"""Stub."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.keeper.lead import Lead


def flush(lead: Lead) -> str:
    return "nothing flushed"
