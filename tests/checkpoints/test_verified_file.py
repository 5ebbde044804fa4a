"""One file from several copies: every chunk comes from the nearest copy where it is good, or is refused."""

import pytest

from holdfast.checkpoints.verified import Copy, DamagedChunk, VerifiedFile
from holdfast.errors import CorruptCheckpoint, StoreNotFound, StoreUnavailable
from holdfast.format.checksum import ALGORITHM, digest
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import StoredFile

CHUNK = 64
DATA = bytes(range(200))
DIGESTS = tuple(digest(DATA[at : at + CHUNK]) for at in range(0, len(DATA), CHUNK))
RECORD = FileRecord("a.bin", len(DATA), "state", ALGORITHM, CHUNK, DIGESTS)


class InMemory:
    """Fails to read the chunks in `broken`, once for each time that they are listed there."""

    def __init__(self, data: bytes, broken: list[int] | None = None) -> None:
        self.size, self.data, self.broken = len(data), data, broken or []
        self.reads = 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.reads += 1
        if offset // CHUNK in self.broken:
            self.broken.remove(offset // CHUNK)
            raise StoreUnavailable("an I/O error")
        buffer[:] = self.data[offset : offset + len(buffer)]

    def close(self) -> None:
        self.size = -1


def harmed(*at: int) -> InMemory:
    data = bytearray(DATA)
    for place in at:
        data[place] ^= 1
    return InMemory(bytes(data))


def over(*files: StoredFile | Exception) -> VerifiedFile:
    def opened(file: StoredFile | Exception) -> StoredFile:
        if isinstance(file, Exception):
            raise file
        return file

    copies = [Copy(f"copy {n}", lambda f=file: opened(f)) for n, file in enumerate(files)]  # type: ignore[misc]
    return VerifiedFile(RECORD, "c", copies)


def test_each_chunk_comes_from_the_nearest_copy_in_which_it_is_good() -> None:
    near, far = harmed(3, 70), InMemory(DATA)
    with over(near, far).opened() as file:
        assert b"".join(map(bytes, file.chunks())) == DATA
        assert far.reads == 2, "only what is damaged nearby is read from afar"
        for start, stop in [(0, 200), (10, 20), (60, 130), (199, 200), (5, 5)]:
            assert file.read(start, stop) == DATA[start:stop]


def test_a_chunk_that_is_good_nowhere_is_refused_and_named() -> None:
    with over(harmed(70), harmed(64, 10)).opened() as file:
        assert file.read(0, 64) == DATA[:64]
        with pytest.raises(DamagedChunk, match=r"chunk 1 \(bytes 64 to 128\) does not") as caught:
            file.read(100, 101)
    assert caught.value.index == 1


def test_all_damage_is_listed_in_order_and_without_keeping_bytes() -> None:
    heard: list[int] = []
    with over(harmed(0, 199)).opened() as file:
        assert [one.index for one in file.bad_chunks(checked=heard.append)] == [0, 3]
    assert sum(heard) == 200


def test_a_read_error_is_no_damage_and_the_next_chunk_is_still_read() -> None:
    with over(InMemory(DATA, [1])).opened() as file, pytest.raises(StoreUnavailable):
        file.bad_chunks(threads=1)
    with over(InMemory(DATA, [1])).opened() as file:
        assert [one.index for one in file.bad_chunks(threads=1, unreadable_too=True)] == [1]


def test_a_copy_that_fails_is_not_asked_again_while_there_is_another() -> None:
    near = InMemory(DATA, [0])
    with over(near, InMemory(DATA)).opened() as file:
        assert file.read(0, 200) == DATA
    assert near.reads == 1


def test_what_may_be_whole_outweighs_what_is_proven() -> None:
    with over(harmed(0), InMemory(DATA, [0])).opened() as file, pytest.raises(StoreUnavailable):
        file.read(0, 1)


def test_a_file_of_another_size_or_none_is_refused_before_the_first_byte() -> None:
    with pytest.raises(CorruptCheckpoint, match="has 3 bytes, not 200"):
        over(InMemory(b"abc")).opened()
    with pytest.raises(StoreNotFound):
        over(StoreNotFound("gone")).opened()
    with over(InMemory(b"abc"), StoreNotFound("gone"), InMemory(DATA)).opened() as file:
        assert file.read(0, 200) == DATA


def test_bytes_behind_the_end_are_refused() -> None:
    with over(InMemory(DATA)).opened() as file, pytest.raises(CorruptCheckpoint, match="ends at byte 200"):
        file.read(190, 201)
