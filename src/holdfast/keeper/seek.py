"""How a keeper finds its leader: the lowest registered one that lives. Who finds none before it, leads."""

from __future__ import annotations

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
from holdfast.stores.wire_handshake import introduce

DIAL_SECONDS = 2.0


class GivenUp(Exception):
    """The others took this node for lost, and go on without it."""


@dataclass(frozen=True)
class Link:
    """A member's end of its connection to the leader."""

    leader: Card
    connection: socket.socket
    voice: Voice

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
    links: dict[int, Link] = {}
    answers: dict[int, dict[str, Any]] = {}

    def ask(index: int) -> None:
        card = asked[index]
        try:
            link, answer = dial(card, meeting.token, hello, clock, silence_seconds=silence_seconds)
        except (OSError, HoldfastError):
            return
        answers[card.number] = answer
        if answer.get("answer") == "welcome":
            links[card.number] = link
        else:
            link.close()

    side_by_side(ask, len(asked), threads=16)
    first = min(links, default=None)
    for number, link in links.items():
        if number != first:
            link.close()
    if first is not None:
        return Found(links[first], lower=True)
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


def dial(
    card: Card, token: bytes, hello: dict[str, Any], clock: Clock, *, silence_seconds: float
) -> tuple[Link, dict[str, Any]]:
    """A connection, and what the keeper there answers to `hello`."""
    connection = socket.create_connection((card.address, card.port), timeout=DIAL_SECONDS)
    try:
        channel = Channel(connection, clock, silence_seconds=silence_seconds)
        channel.limit(DIAL_SECONDS)
        introduce(channel, token)
        voice = Voice(channel)
        voice.say(hello)
        answer = voice.hear()
        channel.limit(None)
    except BaseException:
        connection.close()
        raise
    return Link(card, connection, voice), answer
