"""docs/format.md says how to audit a store with other tools; these follow its recipe, without our parsers."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import xxhash

from holdfast.checkpoints.write import write_checkpoint
from holdfast.format.manifest import Manifest
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import image_of
from holdfast.testing.store_contract import draft

DOCUMENT = Path(__file__).parents[2] / "docs" / "format.md"
CHUNK = 16 << 20


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with CheckpointStore(tmp_path / "run") as store:
        done = write_checkpoint(store, draft(1, writer_epoch=store.claim()), [image_of(1, values=9 << 20)])
        return Path(store.where, "ckpt", str(done.name))


def test_the_layout_is_the_documented_one(place: Path) -> None:
    root = place.parent.parent
    assert sorted(path.name for path in root.iterdir()) == ["LOCK", "STORE.json", "ckpt", "writers"]
    assert [path.name for path in (root / "writers").iterdir()] == ["00000001.json"]
    assert sorted(path.name for path in place.iterdir()) == ["MANIFEST", "MANIFEST.2", image_of(1).name]
    assert (place / "MANIFEST").read_bytes() == (place / "MANIFEST.2").read_bytes()


@pytest.mark.parametrize("record", ["MANIFEST", "../../STORE.json", "../../writers/00000001.json"])
def test_every_record_is_a_line_and_its_sha256(place: Path, record: str) -> None:
    line, seal, rest = (place / record).read_bytes().split(b"\n")
    assert rest == b""
    assert seal.decode() == "sha256:" + hashlib.sha256(line + b"\n").hexdigest()
    assert json.loads(line)["format"] == 1


def test_the_chunks_of_a_file_hash_to_its_digests(place: Path) -> None:
    [file] = json.loads((place / "MANIFEST").read_bytes().split(b"\n")[0])["files"]
    content = (place / file["name"]).read_bytes()
    chunks = [content[start : start + CHUNK] for start in range(0, len(content), CHUNK)]
    assert len(chunks) > 2
    assert [xxhash.xxh3_128(chunk).hexdigest() for chunk in chunks] == file["digests"]


def test_the_safetensors_library_opens_the_data(place: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(place / image_of(1).name, "numpy") as file:
        assert sorted(file.keys()) == ["layer.bias", "layer.weight"]
        assert file.get_tensor("layer.weight").shape == (9 << 20,)


def test_the_document_names_every_field_of_the_manifest(place: Path) -> None:
    table = DOCUMENT.read_text().split("## The manifest")[1].split("## Data files")[0]
    documented = {
        name for row in re.findall(r"^\| (`.*?`) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)
    }
    assert documented == set(Manifest.__dataclass_fields__)
    record = json.loads((place / "MANIFEST").read_bytes().split(b"\n")[0])
    assert set(record) == documented
