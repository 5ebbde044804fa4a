"""How nodes speak to each other: one TCP connection, frames of a small JSON header and a raw body.

One data plane serves protecting, restoring, and keepers that outlive their trainers. It is not a process
group of torch.distributed: after the death of one peer a gloo pair can be neither cancelled nor joined again,
and a keeper is in no process group at all. A TCP connection that breaks costs one request between two nodes.

Nothing here is encrypted. Both ends prove that they know the run's token without sending it, and from then on
every header and every body carries a message authentication code of that connection: a stranger can neither
read nor write nor change what passes through its hands. Whoever can listen on the cluster's network can still
see the bytes.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import StoreError

VERSION = 2
MAX_HEADER_BYTES = 64 << 10
MAX_BODY_BYTES = 1 << 50
# A connection that makes less than this of a large body is as good as dead.
SLOWEST_BYTES_PER_SECOND = 1 << 20
# What is sent between two looks at the clock.
_PIECE_BYTES = 4 << 20
_MAGIC = b"HFW1"
_LEAD = struct.Struct("!4sI")
TAG_BYTES = 32


class Seal:
    """Authenticates one direction of a connection. The count makes a frame that was left out, repeated or
    moved as visible as one that was changed."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def next(self, data: bytes = b"") -> hmac.HMAC:
        self._count += 1
        code = hmac.new(self._key, struct.pack("!Q", self._count), "sha256")
        code.update(data)
        return code


class Channel:
    """One end of a connection. Raises OSError when it breaks, TimeoutError when a limit has passed, and
    StoreError when the other end does not speak this language; after any of them it can only be closed."""

    def __init__(self, connection: socket.socket, clock: Clock, *, silence_seconds: float) -> None:
        self._connection = connection
        self._clock = clock
        self._silence = silence_seconds
        self._end: float | None = None
        # Raw bytes that this end still owes, and that the other end still owes: while there are any, the next
        # thing on the wire is not a frame.
        self.to_send = 0
        self.to_receive = 0
        # None until the handshake has made the keys of this connection.
        self._sending: Seal | None = None
        self._receiving: Seal | None = None
        self._sent_body: hmac.HMAC | None = None
        self._received_body: hmac.HMAC | None = None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def authenticate(self, *, sending: bytes, receiving: bytes) -> None:
        """From now on every frame is sent and expected with a code made with these keys."""
        self._sending, self._receiving = Seal(sending), Seal(receiving)

    @property
    def server_address(self) -> str:
        """The listening end of this connection as the kernel knows it, which is equal at both ends."""
        return self._text(self._connection.getpeername())

    @property
    def own_address(self) -> str:
        return self._text(self._connection.getsockname())

    @staticmethod
    def _text(address: Any) -> str:
        return f"{address[0]}:{address[1]}"

    def limit(self, seconds: float | None) -> None:
        """How long everything from now on may take together; None leaves only the limit on silence."""
        self._end = None if seconds is None else self._clock.monotonic() + seconds

    def send(self, header: Mapping[str, Any], *, body: int = 0) -> None:
        """A frame's header; exactly `body` raw bytes must follow."""
        text = json.dumps({**header, "body": body}, separators=(",", ":"), allow_nan=False).encode()
        if len(text) > MAX_HEADER_BYTES:
            raise StoreError(f"a message of {len(text)} bytes is longer than the {MAX_HEADER_BYTES} allowed")
        self._arm()
        self._connection.sendall(self.framed(text))
        self.to_send = body
        self._sent_body = self._sending.next() if body and self._sending is not None else None

    def framed(self, text: bytes) -> bytes:
        code = b"" if self._sending is None else self._sending.next(text).digest()
        return _LEAD.pack(_MAGIC, len(text)) + text + code

    def send_body(self, data: bytes | memoryview) -> None:
        with memoryview(data) as view:
            for start in range(0, len(view), _PIECE_BYTES):
                piece = view[start : start + _PIECE_BYTES]
                self._arm()
                self._connection.sendall(piece)
                self.to_send -= len(piece)
                if self._sent_body is not None:
                    self._sent_body.update(piece)
            if self.to_send == 0 and self._sent_body is not None:
                self._arm()
                self._connection.sendall(self._sent_body.digest())
                self._sent_body = None

    def send_file(self, descriptor: int, start: int, stop: int) -> None:
        """A body from a file. Not by sendfile: the code over it needs to see the bytes."""
        buffer = memoryview(bytearray(min(_PIECE_BYTES, max(stop - start, 0))))
        while start < stop:
            got = os.preadv(descriptor, [buffer[: stop - start]], start)
            if got == 0:
                raise ConnectionAbortedError(f"the file ends at byte {start}, before its time")
            self.send_body(buffer[:got])
            start += got

    def receive(self) -> dict[str, Any]:
        """The next frame's header. Its `body` says how many raw bytes follow."""
        lead = bytearray(_LEAD.size)
        self._fill(memoryview(lead))
        magic, length = _LEAD.unpack(lead)
        if magic != _MAGIC or length > MAX_HEADER_BYTES:
            raise StoreError("the other end does not speak holdfast's protocol", hint="check the port")
        text = bytearray(length)
        self._fill(memoryview(text))
        if self._receiving is not None:
            self._require_code(self._receiving.next(bytes(text)))
        header = parse_header(bytes(text))
        self.to_receive = header["body"]
        self._received_body = (
            self._receiving.next() if self.to_receive and self._receiving is not None else None
        )
        return header

    def _require_code(self, wanted: hmac.HMAC) -> None:
        code = bytearray(TAG_BYTES)
        self._fill(memoryview(code))
        if not hmac.compare_digest(bytes(code), wanted.digest()):
            # Nothing that comes after it on this connection can be believed, whoever catches the error.
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("a message was changed on its way, or is not from whom it should be")

    def receive_body(self, buffer: memoryview) -> None:
        """Fill `buffer` with the next bytes of the body."""
        if len(buffer) > self.to_receive:
            raise StoreError(f"the body is {len(buffer) - self.to_receive} bytes shorter than it should be")
        self._fill(buffer)
        self.to_receive -= len(buffer)
        if self._received_body is not None:
            self._received_body.update(buffer)
            if self.to_receive == 0:
                wanted, self._received_body = self._received_body, None
                self._require_code(wanted)

    def receive_bytes(self, count: int, limit: int) -> bytes:
        """A body, or the beginning of one; refused before anything is allocated for it if it is too long."""
        if count > limit:
            raise StoreError(f"a body of {count} bytes is longer than the {limit} allowed here")
        data = bytearray(count)
        self.receive_body(memoryview(data))
        return bytes(data)

    def discard_body(self) -> None:
        """Read past what nobody wants any more, so that an answer can reach the other end."""
        scrap = memoryview(bytearray(min(self.to_receive, 1 << 20)))
        while self.to_receive:
            self.receive_body(scrap[: min(len(scrap), self.to_receive)])

    def _fill(self, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            self._arm()
            got = self._connection.recv_into(buffer[done:])
            if got == 0:
                raise ConnectionResetError("the other end has closed the connection")
            done += got

    def wait(self, seconds: float) -> None:
        """Until the other end says something; TimeoutError if it does not within `seconds`."""
        self._connection.settimeout(seconds)
        if not self._connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError("the other end has closed the connection")
        self.limit(None)

    def close(self) -> None:
        self._connection.close()

    def _arm(self) -> None:
        left = self._silence if self._end is None else min(self._silence, self._end - self._clock.monotonic())
        if left <= 0:
            raise TimeoutError("the limit for this request has passed")
        self._connection.settimeout(left)


def parse_header(text: bytes) -> dict[str, Any]:
    """Strict: one JSON object whose `body` is a sane length. What else it needs, each verb checks."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"a message is not JSON: {error}") from error
    body = header.get("body") if isinstance(header, dict) else None
    if type(body) is not int or not 0 <= body <= MAX_BODY_BYTES:
        raise StoreError("a message does not say how long its body is")
    return dict(header)
