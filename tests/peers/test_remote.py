"""A store on another node: what is read there is what is here, and nobody waits for a node that is gone."""

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.read import read_files
from holdfast.checkpoints.verify import verify
from holdfast.clock import SystemClock
from holdfast.errors import (
    CorruptCheckpoint,
    SetupError,
    StoreDenied,
    StoreError,
    StoreNotFound,
    StoreUnavailable,
)
from holdfast.stores.locations import node_store
from holdfast.stores.remote import RemoteStore
from holdfast.stores.serve import NodeServer
from holdfast.stores.store import CheckpointStore
from holdfast.stores.wire import MAX_HEADER_BYTES, VERSION, Channel, Seal
from holdfast.stores.wire_handshake import PURPOSE_KEEPER, PURPOSE_STORE, introduce
from holdfast.testing.memory_image import MemoryImage, image_of
from holdfast.testing.store_contract import StoreContract, draft, newest_valid, save

TOKEN = b"a secret of this run"
UUID = "00000000-0000-4000-8000-000000000001"
CHUNK = 16 << 20


class TestThroughTheWire(StoreContract):
    """What a store must do, done from afar; but for retiring, which is each node's own."""

    @pytest.fixture(autouse=True)
    def _close(self) -> Iterator[None]:
        self.opened: list[Any] = []
        yield
        for each in reversed(self.opened):
            each.close()

    def make_store(self, tmp_path: Path) -> RemoteStore:
        server = NodeServer({"local": node_store(tmp_path / "run", uuid=UUID)}, TOKEN)
        far = RemoteStore(server.address, TOKEN)
        self.opened += [server, far]
        return far

    def test_a_published_place_cannot_be_abandoned(self, tmp_path: Path) -> None:
        far = self.make_store(tmp_path)
        name = str(save(far, 1).name)
        far.abandon(name)
        assert far.names() == [name]

    def test_a_retired_checkpoint_is_gone_and_others_stay(self, tmp_path: Path) -> None:
        far = self.make_store(tmp_path)
        name = str(save(far, 1).name)
        with pytest.raises(StoreDenied, match="its own node"):
            far.retire(name)
        assert far.names() == [name]

    def test_an_open_file_outlives_its_retirement(self, tmp_path: Path) -> None:
        far = self.make_store(tmp_path)
        name = str(save(far, 1).name)
        file = far.open(name, image_of(1).name)
        node_store(tmp_path / "run").retire(name)
        with pytest.raises(StoreNotFound):
            file.read_into(0, memoryview(bytearray(file.size)))


@pytest.fixture
def node(tmp_path: Path) -> CheckpointStore:
    return node_store(tmp_path / "run", uuid=UUID)


@pytest.fixture
def server(node: CheckpointStore) -> Iterator[NodeServer]:
    with NodeServer({"local": node}, TOKEN) as server:
        yield server


@pytest.fixture
def far(server: NodeServer) -> Iterator[RemoteStore]:
    with RemoteStore(server.address, TOKEN, silence_seconds=10) as far:
        yield far


def test_a_directory_store_is_read_but_not_written_from_afar(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "run") as own:
        name = str(save(own, 3, writer_epoch=own.claim()).name)
        with NodeServer({"disk": own}, TOKEN) as server, RemoteStore(server.address, TOKEN, "disk") as far:
            loaded = newest_valid(far)
            assert loaded is not None
            assert loaded.files[image_of(3).name] == image_of(3).view(0, image_of(3).size)
            assert verify(far, loaded.found).is_whole
            assert far.held(name) == {image_of(3).name: image_of(3).size}
            assert (far.uuid, far.properties) == (own.uuid, own.properties)
            with pytest.raises(StoreDenied, match="only read"):
                far.write(name, MemoryImage("a.bin", b"a"))
            with RemoteStore(server.address, TOKEN) as other:
                with pytest.raises(StoreNotFound, match="no store 'local'"):
                    other.names()


def test_ranges_of_a_file_are_read_from_many_threads_at_once(node: CheckpointStore, far: RemoteStore) -> None:
    content = os.urandom(3 * CHUNK + 12345)
    name = str(draft(1).name)
    node.write(name, MemoryImage("data.bin", content))
    file = far.open(name, "data.bin")
    wrong: list[tuple[int, int]] = []

    def read(first: int) -> None:
        for start in range(first, len(content), 7 * 1_000_003):
            buffer = memoryview(bytearray(min(1_000_003, len(content) - start)))
            file.read_into(start, buffer)
            if buffer != content[start : start + len(buffer)]:
                wrong.append((start, len(buffer)))

    threads = [threading.Thread(target=read, args=(1_000_003 * n,)) for n in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    with pytest.raises(CorruptCheckpoint, match="ends at byte"):
        file.read_into(len(content) - 1, memoryview(bytearray(2)))


def test_a_file_that_shrank_is_damage_and_the_connection_lives_on(
    node: CheckpointStore, far: RemoteStore, tmp_path: Path
) -> None:
    name = str(save(node, 1).name)
    file = far.open(name, image_of(1).name)
    os.truncate(tmp_path / "run" / "ckpt" / name / image_of(1).name, 10)
    with pytest.raises(CorruptCheckpoint, match="has 10 bytes"):
        file.read_into(0, memoryview(bytearray(file.size)))
    assert far.names() == [name]


def test_what_arrives_with_other_bytes_is_refused_and_the_answer_reaches_the_sender(
    node: CheckpointStore, far: RemoteStore
) -> None:
    name = str(draft(1).name)
    expect = far.write(name, MemoryImage("right.bin", b"a" * (CHUNK + 1)))
    same = MemoryImage("right.bin", b"b" * (CHUNK + 1))
    with pytest.raises(CorruptCheckpoint, match="other bytes"):
        far.write(name, same, expect=expect, replace=True)
    with pytest.raises(StoreError, match="never reused"):
        far.write(name, same)
    assert node.held(name) == {"right.bin": CHUNK + 1}
    far.write(name, MemoryImage("after.bin", b"the connection is in order"))


def test_a_manifest_is_settled_only_under_its_own_name(node: CheckpointStore, far: RemoteStore) -> None:
    name = str(save(node, 1).name)
    with pytest.raises(StoreError, match="not the one of"):
        far.publish(str(draft(2).name), node.manifest(name))
    with pytest.raises(CorruptCheckpoint):
        far.publish(name, node.manifest(name)[:-5])


def test_a_wrong_token_is_refused_by_both_ends(server: NodeServer) -> None:
    with RemoteStore(server.address, b"some other secret") as stranger:
        with pytest.raises(StoreDenied, match="token"):
            stranger.names()
    with pytest.raises(SetupError, match="token"):
        RemoteStore(server.address, b"short")


def test_a_server_that_does_not_know_the_token_is_found_out() -> None:
    """It cannot pass for ours by repeating what it heard."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            connection, _ = listener.accept()
            channel = Channel(connection, SystemClock(), silence_seconds=10)
            channel.send({"version": VERSION, "nonce": "0" * 64})
            channel.send({"proof": channel.receive()["proof"]})
            channel.close()

        thread = threading.Thread(target=pretend)
        thread.start()
        with RemoteStore(listener.getsockname(), TOKEN) as far, pytest.raises(StoreDenied, match="token"):
            far.names()
        thread.join(10)


def test_a_node_that_is_gone_is_an_error_and_no_wait(node: CheckpointStore) -> None:
    server = NodeServer({"local": node}, TOKEN)
    far = RemoteStore(server.address, TOKEN)
    assert far.names() == []
    server.close()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="down"):
            far.names()
    # The same address answers again: nothing is remembered for ever.
    with NodeServer({"local": node}, TOKEN, port=server.address[1]):
        assert far.names() == []
    far.close()


def test_a_connection_that_was_closed_for_being_idle_is_replaced_within_the_call(
    node: CheckpointStore,
) -> None:
    with NodeServer({"local": node}, TOKEN, idle_seconds=0.05) as server:
        with RemoteStore(server.address, TOKEN) as far:
            assert far.names() == []
            ended = [t for t in threading.enumerate() if t.name.startswith("holdfast-node-1")]
            for thread in ended:
                thread.join(10)
            assert far.names() == []


def test_a_node_that_falls_silent_is_given_up_and_not_asked_again_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = RemoteStore(listener.getsockname(), TOKEN, connect_seconds=0.1)
        with pytest.raises(StoreUnavailable, match="does not greet"):
            far.names()
        with pytest.raises(StoreUnavailable, match="a moment ago"):
            far.names()


def test_connections_that_say_nothing_shut_nobody_out(node: CheckpointStore) -> None:
    with NodeServer({"local": node}, TOKEN, connections=3) as server:
        hanging = [socket.create_connection(server.address) for _ in range(300)]
        with RemoteStore(server.address, TOKEN) as far:
            assert far.names() == []
        for each in hanging:
            each.close()


def test_many_more_nodes_than_places_are_all_served_again_and_again(node: CheckpointStore) -> None:
    """As in the last flush of a large job: every node asks every other, and keeps its connection."""
    with NodeServer({"local": node}, TOKEN, connections=4) as server, contextlib.ExitStack() as opened:
        nodes = [opened.enter_context(RemoteStore(server.address, TOKEN)) for _ in range(40)]
        for _ in range(3):
            assert [far.names() for far in nodes] == [[]] * 40


def test_who_finds_all_places_taken_waits_for_one(node: CheckpointStore) -> None:
    with NodeServer({"local": node}, TOKEN, connections=2) as server:
        taken = [raw(server) for _ in range(2)]
        for each in taken:
            # Half of a request: whoever is being served is not sent home.
            each.send({"verb": "settle", "store": "local", "name": "n"}, body=10)
        with RemoteStore(server.address, TOKEN) as late:
            answer: list[list[str]] = []
            asking = threading.Thread(target=lambda: answer.append(late.names()), daemon=True)
            asking.start()
            assert not answer
            taken[0].close()
            asking.join(60)
            assert answer == [[]]
        taken[1].close()


@contextlib.contextmanager
def relay(target: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """The address of somebody who passes on to `target` whatever is said, and back."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as opened:

        def pass_on(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_RDWR)

        def accept() -> None:
            near = opened.enter_context(listener.accept()[0])
            far = opened.enter_context(socket.create_connection(target))
            ways = [threading.Thread(target=pass_on, args=way) for way in ((near, far), (far, near))]
            for way in ways:
                way.start()
            for way in ways:
                way.join(10)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()
        thread.join(10)


def test_a_handshake_that_is_passed_on_to_another_address_is_found_out(server: NodeServer) -> None:
    with relay(server.address) as between:
        with RemoteStore(between, TOKEN) as far, pytest.raises(StoreDenied, match="token"):
            far.names()


def test_a_proof_for_one_purpose_is_worth_nothing_for_another(server: NodeServer) -> None:
    with socket.create_connection(server.address, timeout=10) as connection:
        channel = Channel(connection, SystemClock(), silence_seconds=10)
        with pytest.raises(StoreDenied, match="token"):
            introduce(channel, TOKEN, PURPOSE_KEEPER)


def test_a_frame_that_was_changed_repeated_or_made_up_ends_the_connection(server: NodeServer) -> None:
    question = {"verb": "names", "store": "local"}

    def changed(channel: Channel) -> None:
        text = json.dumps({**question, "body": 0}).encode()
        channel._connection.sendall(channel.framed(text).replace(b"names", b"held "))

    def repeated(channel: Channel) -> None:
        frame = channel.framed(json.dumps({**question, "body": 0}).encode())
        channel._connection.sendall(frame)
        answer = channel.receive()
        channel.receive_bytes(answer["body"], 1000)
        channel._connection.sendall(frame)

    def made_up(channel: Channel) -> None:
        channel._sending = Seal(b"not the key of this connection")
        channel.send(question)

    for say in (changed, repeated, made_up):
        channel = raw(server)
        say(channel)
        with pytest.raises(ConnectionError):
            channel.receive()
        channel.close()


def test_a_body_that_was_changed_on_its_way_is_not_stored(node: CheckpointStore, server: NodeServer) -> None:
    name = str(draft(1).name)
    channel = raw(server)
    channel.send(
        {"verb": "put", "store": "local", "name": name, "file": "a.bin", "size": 4, "digests": 0}, body=4
    )
    channel._connection.sendall(b"evil" + bytes(32))
    with pytest.raises(ConnectionError):
        channel.receive()
    channel.close()
    assert node.held(name) == {}


def raw(server: NodeServer) -> Channel:
    connection = socket.create_connection(server.address, timeout=10)
    channel = Channel(connection, SystemClock(), silence_seconds=10)
    introduce(channel, TOKEN, PURPOSE_STORE)
    return channel


@pytest.mark.parametrize(
    "request_",
    [
        {"verb": "rm", "store": "local"},
        {"verb": ["names"], "store": "local"},
        {"verb": "names"},
        {"verb": "names", "store": {}},
        {"verb": "manifest", "store": "local", "name": "../../etc"},
        {"verb": "held", "store": "local", "name": 7},
        {"verb": "size", "store": "local", "name": "NAME", "file": "../STORE.json"},
        {"verb": "size", "store": "local", "name": "NAME", "file": "MANIFEST"},
        {"verb": "read", "store": "local", "name": "NAME", "file": "FILE", "start": 0, "stop": True},
        {"verb": "read", "store": "local", "name": "NAME", "file": "FILE", "start": -1, "stop": 1},
        {"verb": "read", "store": "local", "name": "NAME", "file": "FILE", "start": 9, "stop": 1},
        {"verb": "read", "store": "local", "name": "NAME", "file": "FILE", "start": 0, "stop": 1 << 49},
        {"verb": "read", "store": "local", "name": "NAME", "file": "FILE", "start": 0, "stop": 1e3},
        {"verb": "put", "store": "local", "name": "NAME", "file": "x/../../y", "size": 0, "digests": 0},
        {"verb": "put", "store": "local", "name": "NAME", "file": "part-1", "size": 0, "digests": 0},
        {"verb": "put", "store": "local", "name": "NAME", "file": "a.bin", "size": 5, "digests": 0},
    ],
    ids=json.dumps,
)
def test_whatever_is_asked_wrongly_is_refused_and_the_next_question_answered(
    request_: dict[str, Any], node: CheckpointStore, server: NodeServer
) -> None:
    name = str(save(node, 1).name)
    words = {"NAME": name, "FILE": image_of(1).name}
    channel = raw(server)
    channel.send({k: words.get(v, v) if isinstance(v, str) else v for k, v in request_.items()})
    assert channel.receive()["error"] in ("StoreError", "StoreNotFound", "CorruptCheckpoint")
    channel.send({"verb": "names", "store": "local"})
    answer = channel.receive()
    assert json.loads(channel.receive_bytes(answer["body"], 1000)) == [name]
    channel.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"HFW1" + struct.pack("!I", MAX_HEADER_BYTES + 1),
        b"HFW1" + struct.pack("!I", 4) + b"[[[[",
        b"HFW1" + struct.pack("!I", 2) + b"{}",
        b"HFW1" + struct.pack("!I", 11) + b'{"body":-1}',
        b"HFW1" + struct.pack("!I", 13) + b'{"body":1e99}',
        b"HFW1" + struct.pack("!I", 60000) + b"[" * 60000,
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_not_a_frame_ends_the_connection_and_nothing_else(data: bytes, server: NodeServer) -> None:
    channel = raw(server)
    # With the right code, so that it comes as far as the parser.
    lead, text = data[:8], data[8:]
    code = b"" if channel._sending is None else channel._sending.next(text).digest()
    channel._connection.sendall(lead + text + code)
    with pytest.raises(ConnectionError):
        channel.receive()
    channel.close()
    with RemoteStore(server.address, TOKEN) as far:
        assert far.names() == []


def test_a_forked_child_neither_keeps_the_port_nor_mixes_into_the_parents_connections(
    node: CheckpointStore, server: NodeServer, far: RemoteStore
) -> None:
    name = str(save(node, 1).name)
    assert far.names() == [name]
    release_read, release_write = os.pipe()
    result_read, result_write = os.pipe()
    child = os.fork()
    if child == 0:
        # What pytest has set up belongs to the parent.
        try:
            os.close(release_write)
            os.write(result_write, b"ok" if far.names() == [name] else b"no")
            os.read(release_read, 1)
        finally:
            os._exit(0)
    try:
        assert os.read(result_read, 2) == b"ok"
        assert read_files(far, committed(far)[0])[image_of(1).name] == image_of(1).view(0, image_of(1).size)
        server.close()
        # The child still lives; were the port still open, this would hang until a limit.
        with pytest.raises(StoreUnavailable, match="refused"):
            RemoteStore(server.address, TOKEN).names()
    finally:
        os.close(release_write)
        os.waitpid(child, 0)
        for each in (release_read, result_read, result_write):
            os.close(each)
