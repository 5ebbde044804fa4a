"""Chunks tile a file exactly, and a digest tells any change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.format.checksum import CHUNK_BYTES, chunk_count, chunk_span, digest


def test_the_digest_is_the_published_xxh3_128() -> None:
    # The reference value of the empty input, so that any other tool can check our files.
    assert digest(b"") == "99aa06d3014798d86001c324468d497f"


@given(st.integers(0, 5 * CHUNK_BYTES), st.sampled_from([4096, 1 << 20, CHUNK_BYTES]))
def test_chunks_tile_the_file(size: int, chunk_bytes: int) -> None:
    spans = [chunk_span(i, size, chunk_bytes) for i in range(chunk_count(size, chunk_bytes))]
    assert sum(stop - start for start, stop in spans) == size
    assert all(
        start == i * chunk_bytes and 0 < stop - start <= chunk_bytes for i, (start, stop) in enumerate(spans)
    )


@given(st.binary(min_size=1, max_size=300), st.data())
def test_any_flipped_bit_changes_the_digest(content: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    assert digest(changed) != digest(content)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_gives_the_same_digest(kind: type) -> None:
    assert digest(kind(b"abc")) == digest(b"abc")
