"""Every parser that reads a file, a peer or another process, given inputs that were changed in ways that
people and disks do not think of. A program of its own: a limit on its memory is part of the claim.

    python fuzzed_parsers.py 100000 7      # so many inputs, from this seed; prints one JSON line

Oracle: a parser returns, or raises an error of ours; it never needs more than 64 MB beyond what was there.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.events import Event, Warned
from holdfast.format.checksum import ALGORITHM, CHUNK_BYTES
from holdfast.format.image import TensorSpec, parse_image, plan_image
from holdfast.format.manifest import FileRecord, parse_manifest
from holdfast.format.rank_record import parse_rank_record
from holdfast.format.sealed import canonical_json, seal, unseal
from holdfast.format.tree import Leaves, inflate
from holdfast.jobs.halt import HaltNote, read_halt, write_halt
from holdfast.jobs.heartbeat import read_beat
from holdfast.keeper.world import Seat, World
from holdfast.redundancy.record import Member, MemberFile, ParityRecord, parse_record
from holdfast.redundancy.scheme import parse_scheme
from holdfast.redundancy.stripes import Layout
from holdfast.stores.identity import parse_identity
from holdfast.stores.store import CheckpointStore
from holdfast.stores.wire import parse_header
from holdfast.testing.store_contract import save
from holdfast.tiers.protect_record import StoredParity, parity_name, parse_stored_parity
from holdfast.tiers.tier_list import recall_tiers, remember_tiers
from holdfast.tiers.words import parse_tiers

ALLOWED_BYTES = 64 << 20
NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 1.5, 1e308, "", "x",
    "../../etc/passwd", "\x00", "é" * 300, "A" * 5000, [], {}, [[]], [None] * 300,
    {"tensor": 0}, {"tuple": []}, "0" * 32,
]  # fmt: skip
Parser = tuple[str, bytes, Callable[[bytes], Any], bool]


def parsers(work: Path) -> list[Parser]:
    """Name, a right input, what reads it, and whether it must be sealed again after a change."""
    run = work / "run"
    store = CheckpointStore(run)
    manifest = store.manifest(str(save(store, 3, writer_epoch=store.claim()).name))
    layout = plan_image([TensorSpec("layer.weight", "F32", (2, 3))], {"a": "b"})
    remember_tiers(run, parse_tiers(["memory", "run every 10"]))
    write_halt(run, HaltNote("maintenance", "ops", 1.0))
    event = Warned(time=1.0, message="x").to_line().encode()
    tiers, halt, beat = run / "tiers.json", run / "HALT", work / "beat"
    beat_record = {"count": 1, "pid": 2, "run": "/r", "step": 3, "phase": "training"}
    rank = {
        "format": 1,
        "rank": 0,
        "world": 2,
        "values": {"a": [1]},
        "headers": {"m.safetensors": ["{}", 16, 64]},
    }
    world = World(3, 1, 2, (Seat("node000", 1, "127.0.0.1", "a"),), (7,))
    skeleton = {"dict": [["a", 0], ["b", {"list": [1, {"tensor": {"name": "t"}}]}], [{"tuple": [1, 2]}, 0]]}
    members = tuple(Member(f"m{n}", (MemberFile("a", n + 9),)) for n in range(3))
    parity = ParityRecord(scheme=parse_scheme("rs:2+1"), code="cauchy-bits", members=members)
    file = FileRecord(
        parity_name(parity, "m1"),
        Layout(parity).parity_bytes("m1"),
        "parity",
        ALGORITHM,
        CHUNK_BYTES,
        ("0" * 32,),
    )
    stored = StoredParity("f" * 64, "m1", parity, file).to_bytes()

    def through(path: Path, read: Callable[[], Any]) -> Callable[[bytes], Any]:
        def write_and_read(data: bytes) -> Any:
            path.write_bytes(data)
            return read()

        return write_and_read

    return [
        ("manifest", manifest, parse_manifest, True),
        ("image header", bytes(layout.header), lambda d: parse_image(d, len(d) + 24), False),
        ("record of a rank", seal(rank), parse_rank_record, True),
        ("identity", (run / "STORE.json").read_bytes(), lambda d: parse_identity(d, "here"), True),
        ("tier list", tiers.read_bytes(), through(tiers, lambda: recall_tiers(run)), True),
        ("halt note", halt.read_bytes(), through(halt, lambda: read_halt(run)), True),
        ("heartbeat", json.dumps(beat_record).encode(), through(beat, lambda: read_beat(str(beat))), False),
        ("event", event, lambda data: Event.from_line(data.decode("utf-8", "replace")), False),
        ("header on the wire", b'{"verb":"names","store":"local","body":0}', parse_header, False),
        ("generation of keepers", seal(world.to_json()), lambda data: World.from_json(unseal(data)), True),
        ("parity record", seal(parity.to_json()), lambda data: parse_record(unseal(data)), True),
        ("stored parity", stored, parse_stored_parity, True),
        ("skeleton", seal({"tree": skeleton}), lambda data: _inflated(unseal(data)), True),
    ]


def _inflated(record: dict[str, Any]) -> Any:
    return inflate(record.get("tree", 0), [1, "two"], lambda entry: entry, Leaves())


def changed(data: bytes, is_sealed: bool, dice: random.Random) -> bytes:
    """Often by what it says, then sealed again, so that it comes past the seal; else by its bytes."""
    if dice.random() < 0.6:
        try:
            record = unseal(data) if is_sealed else json.loads(data)
            for _ in range(dice.choice([1, 1, 1, 2, 5])):
                record = _other_value(copy.deepcopy(record), dice)
            text = canonical_json(record)
            if is_sealed:
                return seal(record if isinstance(record, dict) else {"x": record})
            return text
        except (ValueError, TypeError, RecursionError, HoldfastError):
            pass
    raw = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 8])):
        at = dice.randrange(len(raw) + 1)
        kind = dice.randrange(5)
        if kind == 0 and raw:
            raw[at % len(raw)] ^= 1 << dice.randrange(8)
        elif kind == 1:
            raw[at:at] = bytes(dice.randrange(256) for _ in range(dice.choice([1, 4, 64])))
        elif kind == 2:
            del raw[at : at + dice.choice([1, 8, 1000])]
        elif kind == 3:
            raw[at:at] = dice.choice(
                [b"[" * 50_000, b'{"a":' * 20_000, b"9" * 10_000, b"\xff\xfe", b"\x00" * 100]
            )
        else:
            raw[at : at + 8] = dice.choice([b"\xff" * 8, b"\x00" * 8, (1 << 40).to_bytes(8, "little")])
    return bytes(raw)


def _other_value(value: Any, dice: random.Random) -> Any:
    """The same tree with one place changed: another value, a name more, one less, one nested deeply."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, below in list(node.items() if isinstance(node, dict) else enumerate(node)):
            places.append((node, key))
            if isinstance(below, (dict, list)):
                walk(below)

    if isinstance(value, (dict, list)):
        walk(value)
    if not places:
        return dice.choice(NASTY)
    node, key = dice.choice(places)
    kind = dice.randrange(6)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[dice.choice(["", "x", "../x", "__class__", "with"])] = copy.deepcopy(node[key])
    elif kind == 2:
        deep: Any = node[key]
        for _ in range(dice.choice([3, 200, 900])):
            deep = [deep] if dice.random() < 0.5 else {"list": [deep]}
        node[key] = deep
    elif kind == 3 and isinstance(node[key], list):
        node[key] = node[key] * dice.choice([2, 9])
    elif kind == 4 and isinstance(node[key], int):
        node[key] = node[key] + dice.choice([-1, 1, 2**31, 2**62])
    else:
        node[key] = copy.deepcopy(dice.choice(NASTY))
    return value


def main(count: int, seed: int) -> None:
    dice = random.Random(seed)
    found: list[str] = []
    by_parser: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        known = parsers(Path(folder))
        for name, right, parse, _ in known:
            parse(right)  # A harness whose right inputs are refused would prove nothing.
            by_parser[name] = 0
        with open("/proc/self/statm") as statm:
            now = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + ALLOWED_BYTES, now + ALLOWED_BYTES))
        for _ in range(count):
            name, right, parse, is_sealed = dice.choice(known)
            data = changed(right, is_sealed, dice)
            by_parser[name] += 1
            try:
                parse(data)
            except HoldfastError:
                pass
            except BaseException:  # noqa: BLE001  anything else is what we look for
                found.append(f"{name}: {traceback.format_exc(limit=-2)[-400:]} of {data[:300]!r}")
                if len(found) >= 5:
                    break
    print(json.dumps({"inputs": sum(by_parser.values()), "seed": seed, "parsers": by_parser, "found": found}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
