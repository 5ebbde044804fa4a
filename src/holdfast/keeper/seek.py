"""How a keeper finds its leader: the lowest registered one that lives. Who finds none before it, leads."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, SetupError
from holdfast.keeper.meeting import Meeting
from holdfast.keeper.voice import Voice
from holdfast.keeper.world import Card
from holdfast.stores.side_by_side import side_by_side
from holdfast.stores.wire import Channel
from holdfast.stores.wire_handshake import PURPOSE_KEEPER, introduce

# Less than half of what a post waits for a guest to say who it is.
DIAL_SECONDS = 2.0
_AT_ONCE = 256


class GivenUp(Exception):
    """The others took this node for lost, and go on without it."""


@dataclass(frozen=True)
class Link:
    """A member's end of its connection to the leader."""

    leader: Card
    connection: socket.socket
    voice: Voice

    def ask(self, hello: dict[str, Any]) -> dict[str, Any]:
        """Say who we are, and hear whether we may come in."""
        self.voice.channel.limit(DIAL_SECONDS)
        self.voice.say(hello)
        answer = self.voice.hear()
        self.voice.channel.limit(None)
        return answer

    def fileno(self) -> int:
        return self.connection.fileno()

    def close(self) -> None:
        self.connection.close()


@dataclass(frozen=True)
class Found:
    """`link` is None where nobody leads yet; `lower` says whether somebody lives who should."""

    link: Link | None
    lower: bool


def seek(
    meeting: Meeting,
    me: Card,
    hello: dict[str, Any],
    gone: Collection[int],
    clock: Clock,
    *,
    silence_seconds: float,
) -> Found:
    """Ask all who may lead, at once. `gone` are leaders that were lost already.

    Raises GivenUp if this keeper is one of the lost, SetupError if it was started differently.
    """
    newest = meeting.newest_world()
    leads = {newest.leader} if newest is not None else set()
    asked = [
        card
        for card in meeting.registered()
        if (card.number < me.number or card.number in leads) and card.number not in {me.number, *gone}
    ]
    # First everybody's hand is shaken, at once; the dead take their time. Only then does this keeper say who
    # it is, to one after the other: a leader that takes it in expects to hear of it from then on.
    links: dict[int, Link] = {}

    def shake_hands(index: int) -> None:
        with contextlib.suppress(OSError, HoldfastError):
            links[asked[index].number] = dial(
                asked[index], meeting.token, clock, silence_seconds=silence_seconds
            )

    side_by_side(shake_hands, len(asked), threads=_AT_ONCE)
    answers: dict[int, dict[str, Any]] = {}
    try:
        for number in sorted(links):
            with contextlib.suppress(OSError, HoldfastError):
                answers[number] = links[number].ask(hello)
                if answers[number].get("answer") == "welcome":
                    return Found(links.pop(number), lower=True)
    finally:
        for link in links.values():
            link.close()
    for card in asked:
        answer = answers.get(card.number, {})
        if answer.get("answer") == "lost":
            raise GivenUp(f"{card} and the others go on without this node")
        if answer.get("answer") == "refused":
            raise SetupError(
                f"{card} does not take this keeper: {str(answer.get('why'))[:300]}",
                hint="start the same command on every node",
            )
    if newest is not None and me.number in newest.lost:
        raise GivenUp(f"generation {newest.generation} was founded without this node")
    return Found(None, lower=any(number < me.number for number in answers))


def dial(card: Card, token: bytes, clock: Clock, *, silence_seconds: float) -> Link:
    """A connection on which both ends know that they belong to one job, and no more."""
    connection = socket.create_connection((card.address, card.port), timeout=DIAL_SECONDS)
    try:
        channel = Channel(connection, clock, silence_seconds=silence_seconds)
        channel.limit(DIAL_SECONDS)
        introduce(channel, token, PURPOSE_KEEPER)
    except BaseException:
        connection.close()
        raise
    return Link(card, connection, Voice(channel))
