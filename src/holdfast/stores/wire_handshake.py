"""The first frames of a connection: both ends prove that they know the token, and neither sends it.

    server: version, nonce
    client: version, nonce, hmac(token, "client" + both nonces)
    server: hmac(token, "server" + both nonces)

A recorded conversation is worth nothing later: each has nonces of its own.
"""

from __future__ import annotations

import hmac
import os
import re
from typing import Any

from holdfast.errors import SetupError, StoreDenied, StoreError, StoreUnavailable
from holdfast.stores.wire import VERSION, Channel

MIN_TOKEN_BYTES = 8
_HEX = re.compile("[0-9a-f]{64}", re.ASCII)


def require_token(token: bytes) -> bytes:
    if len(token) < MIN_TOKEN_BYTES:
        raise SetupError(
            f"the token that nodes know each other by has {len(token)} bytes",
            hint="draw at least 8 at random, 32 are better",
        )
    return token


def admit(channel: Channel, token: bytes) -> None:
    """The server's side; StoreDenied if the client does not know the token."""
    mine = os.urandom(32).hex()
    channel.send({"version": VERSION, "nonce": mine})
    hello = channel.receive()
    theirs = _nonce(hello)
    if not _same(hello.get("proof"), _proof(token, b"client", mine, theirs)):
        channel.send({"refused": "token"})
        raise StoreDenied("a connection was refused: its token is wrong")
    channel.send({"proof": _proof(token, b"server", mine, theirs)})


def turn_away(channel: Channel) -> None:
    """Instead of `admit`, where there is no room for one more connection."""
    channel.send({"version": VERSION, "refused": "busy"})


def introduce(channel: Channel, token: bytes) -> None:
    """The client's side; StoreDenied if either end does not know the token."""
    greeting = channel.receive()
    theirs, mine = _nonce(greeting), os.urandom(32).hex()
    channel.send({"version": VERSION, "nonce": mine, "proof": _proof(token, b"client", theirs, mine)})
    if not _same(channel.receive().get("proof"), _proof(token, b"server", theirs, mine)):
        raise StoreDenied(
            "its token is not ours", hint="another run may listen there, or a node has an old token"
        )


def _nonce(header: dict[str, Any]) -> str:
    if header.get("version") != VERSION:
        raise StoreError(
            f"the other end speaks version {str(header.get('version'))[:20]}, this one {VERSION}",
            hint="run the same holdfast on all nodes",
        )
    if header.get("refused") == "busy":
        raise StoreUnavailable("it has all the connections it allows", hint="try again later")
    nonce = header.get("nonce")
    if header["body"] or not isinstance(nonce, str) or not _HEX.fullmatch(nonce):
        raise StoreError("the other end does not speak holdfast's protocol")
    return nonce


def _proof(token: bytes, role: bytes, server: str, client: str) -> str:
    return hmac.new(token, role + b"\0" + server.encode() + client.encode(), "sha256").hexdigest()


def _same(said: object, wanted: str) -> bool:
    return isinstance(said, str) and hmac.compare_digest(said.encode(), wanted.encode())
