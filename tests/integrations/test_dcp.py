"""dcp.save, dcp.async_save and dcp.load with holdfast's writer and reader, in one process."""

from __future__ import annotations

import copy
import json
import os
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import LoadPlan

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.listing import checkpoints
from holdfast.cli.main import main
from holdfast.contents.dcp import DCP_KEY
from holdfast.errors import (
    CorruptCheckpoint,
    Fenced,
    HoldfastError,
    IncompatibleState,
    RestoreError,
    RunInUse,
    SetupError,
    StoreNotFound,
)
from holdfast.integrations.torch_dcp import HoldfastReader, HoldfastWriter
from holdfast.integrations.torch_dcp_metadata import decode_metadata
from holdfast.stores.store import CheckpointStore

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    with HoldfastWriter(tmp_path / "run") as writer:
        yield writer


def save(writer: HoldfastWriter, state: dict[str, Any], step: int) -> None:
    dcp.save(state, checkpoint_id=str(step), storage_writer=writer)


def load(path: Path, state: dict[str, Any], step: int | None = None) -> dict[str, Any]:
    dcp.load(state, storage_reader=HoldfastReader(path, step))
    return state


def why(error: CheckpointException) -> HoldfastError:
    found: Any = error.failures[0][0]
    return found


TENSORS = {
    "f32": torch.randn(3, 5),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 4),
    "bf16": torch.randn(7).to(torch.bfloat16),
    "fp8": torch.randn(9).to(torch.float8_e4m3fn),
    "bool": torch.tensor([True, False, True]),
    "i64": torch.tensor([2**62, -1]),
    "c128": torch.randn(3, dtype=torch.complex128),
    "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
    "transposed": torch.randn(4, 6).t(),
    "every other": torch.arange(20)[::2],
    "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "nan": torch.tensor([float("nan"), float("-inf"), -0.0]),
}


def test_every_kind_of_tensor_comes_back_bit_for_bit(tmp_path: Path, writer: HoldfastWriter) -> None:
    save(writer, {"all": dict(TENSORS)}, 1)
    state = load(tmp_path / "run", {"all": {k: torch.zeros_like(v) for k, v in TENSORS.items()}})
    for name, tensor in TENSORS.items():
        loaded = state["all"][name]
        assert loaded.dtype == tensor.dtype
        for a, b in ((loaded, tensor),):
            raw = [x.resolve_conj().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
            assert torch.equal(*raw), name


OBJECTS = {
    "int": 2**70,
    "nan": float("nan"),
    "text": "grün\n",
    "none": None,
    "bytes": b"\x00\xff",
    "tuple": (1, (2.0, "three"), True),
    "ordered": (OrderedDict(b=1, a=2),),
    "by default": (defaultdict(list, {"a": [1]}),),
    "window": deque([1.0, 2.0], maxlen=5),
    "kind": torch.bfloat16,
    "size": torch.Size([3, 4]),
    "numpy": np.arange(6, dtype=np.int16).reshape(2, 3),
    "number": np.float32(1.5),
    "rng": ("MT19937", np.arange(5, dtype=np.uint32), 3),
    "tensors": (torch.arange(3), {"inner": torch.randn(2, 2)}),
}


def test_objects_come_back_with_every_type(tmp_path: Path, writer: HoldfastWriter) -> None:
    save(writer, {"objects": copy.deepcopy(OBJECTS)}, 1)
    state = load(tmp_path / "run", {"objects": dict.fromkeys(OBJECTS, 0)})["objects"]
    for name, value in OBJECTS.items():
        assert type(state[name]) is type(value), name
        assert repr(state[name]) == repr(value), name
    assert state["window"].maxlen == 5
    assert state["ordered"][0].__class__ is OrderedDict
    assert state["by default"][0].default_factory is list


class Unknown:
    pass


def test_an_object_that_cannot_be_stored_is_named_and_nothing_is_committed(
    tmp_path: Path, writer: HoldfastWriter
) -> None:
    with pytest.raises(CheckpointException) as raised:
        save(writer, {"model": {"w": torch.ones(2), "odd": (Unknown(),)}}, 1)
    assert isinstance(why(raised.value), SetupError)
    assert "model.odd" in str(why(raised.value))
    assert "Unknown" in str(why(raised.value))
    save(writer, {"w": torch.ones(2)}, 2)
    assert [path.name[10:23] for path in (tmp_path / "run/ckpt").iterdir()] == ["s000000000002"]


def test_no_pickle_is_stored_and_other_programs_can_read_the_image(
    tmp_path: Path, writer: HoldfastWriter
) -> None:
    state = {"model": {"layer.weight": torch.randn(4, 4)}, "epoch": 3}
    save(writer, state, 7)
    (saved,) = checkpoints(tmp_path / "run")
    assert {path.suffix for path in saved.files.values()} == {".safetensors"}
    assert torch.equal(
        load_file(saved.files["dcp-r00000.safetensors"])["model.layer.weight"], state["model"]["layer.weight"]
    )
    everything = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"torch._utils" not in everything
    assert b"PK\x03\x04" not in everything


def test_the_metadata_comes_back_as_dcp_made_it(tmp_path: Path, writer: HoldfastWriter) -> None:
    made = dcp.save(
        {"b": torch.nn.Linear(3, 2).state_dict(), "a": {"n": 1}}, checkpoint_id="1", storage_writer=writer
    )
    read = HoldfastReader(tmp_path / "run").read_metadata()
    assert read.state_dict_metadata == made.state_dict_metadata
    assert list(read.state_dict_metadata) == list(made.state_dict_metadata)
    assert read.planner_data == made.planner_data
    assert set(read.storage_data) == set(made.storage_data)


def test_the_step_is_the_argument_the_checkpoint_id_or_the_next(tmp_path: Path) -> None:
    run = tmp_path / "run"
    dcp.save({"n": 5}, storage_writer=HoldfastWriter(run, step=5))
    dcp.save({"n": 6}, storage_writer=HoldfastWriter(run))
    writer = HoldfastWriter(run)
    dcp.save({"n": 40}, checkpoint_id="checkpoints/step_40", storage_writer=writer)
    assert [saved.step for saved in checkpoints(run)] == [40, 6, 5]
    assert load(run, {"n": 0}) == {"n": 40}
    assert load(run, {"n": 0}, 5) == {"n": 5}
    state = {"n": 0}
    dcp.load(state, checkpoint_id="step-6", storage_reader=HoldfastReader(run))
    assert state == {"n": 6}
    with pytest.raises(SetupError, match="does not end in a number"):
        dcp.save({"n": 1}, checkpoint_id="final", storage_writer=writer)
    writer.close()


def test_asynchronous_saves_store_what_was_there_when_they_began(
    tmp_path: Path, writer: HoldfastWriter
) -> None:
    weights = torch.zeros(1000)
    for step in (1, 2, 3):
        weights.fill_(step)
        saving = dcp.async_save({"w": weights, "step": step}, checkpoint_id=str(step), storage_writer=writer)
        weights.fill_(-1.0)
        saving.result(60)
    for step in (1, 2, 3):
        state = load(tmp_path / "run", {"w": torch.empty(1000), "step": 0}, step)
        assert state["step"] == step
        assert state["w"].unique().tolist() == [step]


def test_keep_removes_what_no_rule_wants_and_dcp_loads_the_rest(tmp_path: Path) -> None:
    with HoldfastWriter(tmp_path / "run", keep="latest 2, every 4 steps") as writer:
        for step in range(1, 8):
            save(writer, {"step": step, "w": torch.full((3,), float(step))}, step)
    assert [saved.step for saved in checkpoints(tmp_path / "run")] == [7, 6, 4, 1]
    assert load(tmp_path / "run", {"step": 0, "w": torch.zeros(3)}, 4)["w"].tolist() == [4.0] * 3
    with pytest.raises(SetupError, match="keep=1 is not safe"):
        HoldfastWriter(tmp_path / "run", keep=1)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_a_flipped_byte_is_found_and_named_and_what_lies_elsewhere_still_loads(
    tmp_path: Path, writer: HoldfastWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"a": torch.arange(5 << 20, dtype=torch.float32), "b": torch.zeros(5 << 20)}
    save(writer, state, 1)
    (saved,) = checkpoints(tmp_path / "run")
    image = saved.files["dcp-r00000.safetensors"]
    flip(image, image.stat().st_size - 3)

    reader = HoldfastReader(tmp_path / "run")
    part = {"a": torch.zeros(5 << 20)}
    dcp.load(part, storage_reader=reader)
    assert torch.equal(part["a"], state["a"])
    assert reader.bytes_read == 32 << 20, "more chunks were read than those that hold the tensor"

    with pytest.raises(CheckpointException) as raised:
        load(tmp_path / "run", {"a": torch.zeros(5 << 20), "b": torch.ones(5 << 20)})
    assert isinstance(why(raised.value), CorruptCheckpoint)
    text = str(why(raised.value))
    assert "dcp-r00000.safetensors" in text
    assert "'b" in text
    assert main(["verify", "--deep", str(tmp_path / "run")]) != 0
    assert "is damaged" in capsys.readouterr().out


def test_the_command_line_reads_what_dcp_saved(
    tmp_path: Path, writer: HoldfastWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    save(writer, {"model": torch.nn.Linear(3, 2).state_dict(), "epoch": 3}, 12)
    run = str(tmp_path / "run")
    assert main(["list", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoints"][0]["step"] == 12
    assert main(["verify", "--deep", run]) == 0
    assert main(["show", run]) == 0
    assert main(["show", "--tensors", run]) == 0
    shown = capsys.readouterr().out
    assert "dcp-r00000.safetensors" in shown
    assert "model/weight" in shown


def test_another_process_is_refused_while_this_one_holds_the_folder(
    tmp_path: Path, writer: HoldfastWriter
) -> None:
    save(writer, {"n": 1}, 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            save(HoldfastWriter(tmp_path / "run"), {"n": 2}, 2)
        except CheckpointException as error:
            code = 0 if isinstance(why(error), RunInUse) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [saved.step for saved in checkpoints(tmp_path / "run")] == [1]


def test_whoever_was_taken_over_commits_nothing_more(tmp_path: Path, writer: HoldfastWriter) -> None:
    save(writer, {"n": 1}, 1)
    child = os.fork()
    if child == 0:
        save(HoldfastWriter(tmp_path / "run", take_over=True), {"n": 10}, 10)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(CheckpointException) as raised:
        save(HoldfastWriter(tmp_path / "run"), {"n": 20}, 20)
    assert isinstance(why(raised.value), Fenced)
    assert load(tmp_path / "run", {"n": 0}) == {"n": 10}


def test_a_wrong_folder_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="there is no folder"):
        HoldfastReader(tmp_path / "nowhere").read_metadata()
    with pytest.raises(CheckpointException, match="there is no folder"):
        load(tmp_path / "nowhere", {"n": 0})
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreNotFound, match="no checkpoint in"):
        HoldfastReader(tmp_path / "empty").read_metadata()
    dcp.save({"n": 1}, checkpoint_id=tmp_path / "plain")
    with pytest.raises(StoreNotFound, match="FileSystemWriter"):
        HoldfastReader(tmp_path / "plain").read_metadata()
    with HoldfastWriter(tmp_path / "run") as writer:
        save(writer, {"n": 1}, 1)
    with pytest.raises(StoreNotFound, match=r"no checkpoint of step 2 .* those of 1"):
        HoldfastReader(tmp_path / "run", 2).read_metadata()


def test_a_checkpoint_that_dcp_did_not_save_is_told_apart(tmp_path: Path) -> None:
    from holdfast.testing.store_contract import save as save_something

    with CheckpointStore(tmp_path / "run") as store:
        save_something(store, 1, writer_epoch=store.claim())
    with pytest.raises(IncompatibleState, match="was not saved through DCP"):
        HoldfastReader(tmp_path / "run").read_metadata()


def test_ranks_that_found_different_checkpoints_load_neither(tmp_path: Path) -> None:
    plans = [LoadPlan([], storage_data=(name, "")) for name in ("e1", "e2")]
    with pytest.raises(RestoreError, match="do not see the same newest checkpoint"):
        HoldfastReader(tmp_path).prepare_global_plan(plans)


def test_what_the_writer_cannot_do_is_refused_and_not_half_done(
    tmp_path: Path, writer: HoldfastWriter
) -> None:
    with pytest.raises(SetupError, match="use_collectives=False"):
        dcp.save({"n": 1}, checkpoint_id="1", storage_writer=writer, use_collectives=False)
    with pytest.raises(SetupError, match="is not the number of a step"):
        HoldfastWriter(tmp_path, step=-1)
    assert checkpoints(tmp_path) == []


def test_plan_caching_is_refused_at_its_second_save(tmp_path: Path, writer: HoldfastWriter) -> None:
    class Cached(DefaultSavePlanner):
        def __init__(self) -> None:
            super().__init__(enable_plan_caching=True)

    dcp.save({"n": 1}, checkpoint_id="1", storage_writer=writer, planner=Cached())
    with pytest.raises(CheckpointException, match="enable_plan_caching"):
        dcp.save({"n": 1}, checkpoint_id="2", storage_writer=writer, planner=Cached())
    assert [saved.step for saved in checkpoints(tmp_path / "run")] == [1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 2),
        ("items", [["w", {"dtype": "float32"}]]),
        ("items", [["w", {"dtype": "float32", "size": [4], "chunks": [[[0], [9], 0, 4096]]}]]),
        ("items", [["w", {"dtype": "float32", "size": [4], "chunks": [[[0], [4], 0, 1 << 40]]}]]),
        ("items", [["w", {"dtype": "float32", "size": [4], "chunks": [[[-1], [4], 0, 4096]]}]]),
        ("items", [["w", {"dtype": "float32", "size": [4], "chunks": [[[0], [4], 7, 4096]]}]]),
        ("items", [["w", {"dtype": "load", "size": [4], "chunks": []}]]),
        ("items", [["o", {"object": 0, "file": 0, "values": ["r00000", 0, 99]}]]),
        ("planner", [{"tensor": {}}, []]),
        ("planner", None),
    ],
)
def test_metadata_that_leaves_its_files_or_its_tensors_is_corrupt(
    tmp_path: Path, writer: HoldfastWriter, field: str, value: Any
) -> None:
    save(writer, {"w": torch.ones(4), "o": 1}, 1)
    manifest = committed(CheckpointStore(tmp_path / "run"))[0].manifest
    assert manifest is not None
    decode_metadata(manifest)
    record: dict[str, Any] = manifest.values[DCP_KEY]
    record[field] = value
    with pytest.raises(CorruptCheckpoint):
        decode_metadata(manifest)
