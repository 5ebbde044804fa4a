"""The first frames of a connection: both ends prove that they know the token, and neither sends it.

    server: version, nonce
    client: version, nonce, hmac(token, "client" + purpose + address + both nonces)
    server: hmac(token, "server" + purpose + address + both nonces)

A recorded conversation is worth nothing later: each has nonces of its own. `purpose` keeps a keeper's port
and a store's apart. `address` is the listening end as each end's kernel knows it: whoever passes a handshake
on to another port has a different one on each side. The keys that authenticate every later frame come from
the same values, so even a handshake that was passed on whole gives its carrier nothing to say.
"""

from __future__ import annotations

import hmac
import os
import re
from typing import Any

from holdfast.errors import SetupError, StoreDenied, StoreError, StoreUnavailable
from holdfast.stores.wire import VERSION, Channel

MIN_TOKEN_BYTES = 8
PURPOSE_STORE, PURPOSE_KEEPER = "store", "keeper"
_HEX = re.compile("[0-9a-f]{64}", re.ASCII)


class Busy(StoreUnavailable):
    """There is no room for one more connection at this moment."""


def require_token(token: bytes) -> bytes:
    if len(token) < MIN_TOKEN_BYTES:
        raise SetupError(
            f"the token that nodes know each other by has {len(token)} bytes",
            hint="draw at least 8 at random, 32 are better",
        )
    return token


def admit(channel: Channel, token: bytes, purpose: str) -> None:
    """The server's side; StoreDenied if the client does not know the token."""
    mine = os.urandom(32).hex()
    channel.send({"version": VERSION, "nonce": mine})
    hello = channel.receive()
    said = _transcript(purpose, channel.own_address, mine, _nonce(hello))
    if not _same(hello.get("proof"), _proof(token, b"client", said).hex()):
        channel.send({"refused": "token"})
        raise StoreDenied("a connection was refused: its token is wrong")
    channel.send({"proof": _proof(token, b"server", said).hex()})
    channel.authenticate(
        sending=_proof(token, b"from server", said), receiving=_proof(token, b"from client", said)
    )


def turn_away(channel: Channel) -> None:
    """Instead of `admit`, where there is no room for one more connection."""
    channel.send({"version": VERSION, "refused": "busy"})


def introduce(channel: Channel, token: bytes, purpose: str) -> None:
    """The client's side; StoreDenied if either end does not know the token."""
    greeting = channel.receive()
    mine = os.urandom(32).hex()
    said = _transcript(purpose, channel.server_address, _nonce(greeting), mine)
    channel.send({"version": VERSION, "nonce": mine, "proof": _proof(token, b"client", said).hex()})
    if not _same(channel.receive().get("proof"), _proof(token, b"server", said).hex()):
        raise StoreDenied(
            "its token is not ours",
            hint="another run may listen there, a node may have an old token, or a proxy stands in between",
        )
    channel.authenticate(
        sending=_proof(token, b"from client", said), receiving=_proof(token, b"from server", said)
    )


def _nonce(header: dict[str, Any]) -> str:
    if header.get("version") != VERSION:
        raise StoreError(
            f"the other end speaks version {str(header.get('version'))[:20]}, this one {VERSION}",
            hint="run the same holdfast on all nodes",
        )
    if header.get("refused") == "busy":
        raise Busy("it has all the connections it allows", hint="try again later")
    nonce = header.get("nonce")
    if header["body"] or not isinstance(nonce, str) or not _HEX.fullmatch(nonce):
        raise StoreError("the other end does not speak holdfast's protocol")
    return nonce


def _transcript(purpose: str, address: str, server: str, client: str) -> bytes:
    return "\0".join((purpose, address, server, client)).encode()


def _proof(token: bytes, role: bytes, said: bytes) -> bytes:
    return hmac.new(token, role + b"\0" + said, "sha256").digest()


def _same(said: object, wanted: str) -> bool:
    return isinstance(said, str) and hmac.compare_digest(said.encode(), wanted.encode())
