"""Waiting for enough keepers, survivors first: nobody who holds a node's files is passed over for a spare."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.keeper.meeting import Meeting
from holdfast.keeper.settings import KeeperSettings
from holdfast.keeper.world import Card
from holdfast.stores.side_by_side import side_by_side

if TYPE_CHECKING:
    from holdfast.keeper.lead import Lead

# A keeper that looks for a new leader needs its own time to notice, and then to try those before us.
SEEK_SECONDS = 6.0
PROBE_SECONDS = 1.0
_LOOK_SECONDS = 0.5


class TooFewNodes(Exception):
    """Not enough keepers are left, or came."""


class Gathering:
    def __init__(self, settings: KeeperSettings, meeting: Meeting, clock: Clock) -> None:
        self._settings = settings
        self._meeting = meeting
        self._clock = clock
        # Registered, but there is nobody: left by an earlier job, or lost.
        self._absent: set[int] = set()

    def gather(self, lead: Lead) -> list[Card]:
        """Everybody who is there, once that is enough and all who may still come were waited for; nobody if a
        stop was asked for meanwhile, or this leader must go."""
        opened = self._clock.monotonic()
        enough_at: float | None = None
        while True:
            lead.require_newest()
            if lead.asked is not None or lead.me.number in lead.departures.announced:
                return []
            self._probe(lead)
            now = self._clock.monotonic()
            self._absent -= set(lead.roster.members)
            present = lead.departures.staying()
            expected = self._awaited(lead)
            if expected and now >= opened + self._settings.silence_seconds + SEEK_SECONDS:
                self._absent |= expected
                expected = set()
            if lead.world is not None:
                lead.lost |= lead.world.keepers & self._absent
            if len(present) >= self._settings.nodes and enough_at is None:
                enough_at = now
            if not expected and self._is_time(len(present), opened, enough_at, now, first=lead.world is None):
                return list(present.values())
            lead.hear(_LOOK_SECONDS)

    def _is_time(
        self, count: int, opened: float, enough_at: float | None, now: float, *, first: bool
    ) -> bool:
        wanted = self._settings
        if count >= wanted.nodes:
            waited = enough_at is not None and now >= enough_at + wanted.spare_seconds
            return not first or waited or count >= wanted.nodes + wanted.spares
        if first and now < opened + wanted.join_seconds:
            return False
        if count >= wanted.fewest:
            return True
        if first:
            raise TooFewNodes(f"{count} of {wanted.nodes} nodes came within {wanted.join_seconds:g} s")
        raise TooFewNodes(
            f"{count} nodes are left of the {wanted.fewest} that are needed, and there is no spare"
        )

    def _awaited(self, lead: Lead) -> set[int]:
        there = set(lead.roster.members) | lead.lost | self._absent
        try:
            return {card.number for card in self._meeting.registered()} - there
        except HoldfastError:
            return set(lead.world.keepers) - there if lead.world is not None else set()

    def _probe(self, lead: Lead) -> None:
        """Whose process is gone refuses a connection at once, and need not be waited for."""
        awaited = self._awaited(lead)
        try:
            cards = [card for card in self._meeting.registered() if card.number in awaited]
        except HoldfastError:
            return

        def knock(index: int) -> None:
            card = cards[index]
            try:
                socket.create_connection((card.address, card.port), timeout=PROBE_SECONDS).close()
            except ConnectionRefusedError:
                self._absent.add(card.number)
            except OSError:
                # Perhaps only slow: it has its time to come by itself.
                return

        side_by_side(knock, len(cards), threads=16)
