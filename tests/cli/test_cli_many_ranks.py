"""The command line on what several ranks saved together: whole tensors, however they were spread."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cli_runs import flip
from handmade_ranks import Tensor, save_by_hand
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import holdfast
from holdfast.checkpoints.bytes_source import BytesSource
from holdfast.checkpoints.find import look
from holdfast.checkpoints.write import CheckpointDraft, write_checkpoint
from holdfast.contents.regions import Piece, Region, require_complete
from holdfast.contents.tensors import StoredTensor, read_tensors
from holdfast.errors import CorruptCheckpoint
from holdfast.integrations.torch_dcp import HoldfastWriter
from holdfast.stores.store import CheckpointStore

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
PARAMETERS = {
    "scale", "first.weight", "first.bias", "norm.weight", "norm.bias", "second.weight", "second.bias",
}  # fmt: skip
BUFFERS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folders `ddp`, `fsdp` and `dcp`, and what the ranks said they held. Only to be read."""
    base = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("ranks_that_saved.py")
    done = subprocess.run([sys.executable, script, base], capture_output=True, text=True, timeout=300)
    errors = "\n".join(path.read_text() for path in base.rglob("error-*.txt"))
    assert done.returncode == 0, done.stderr[-2000:] + errors
    answers = json.loads(done.stdout.splitlines()[-1])
    assert all(answer is not None for ranks in answers.values() for answer in ranks), errors
    return base, answers


def digest(tensor: torch.Tensor) -> str:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(repr((tuple(tensor.shape), str(tensor.dtype))).encode() + data).hexdigest()


def held(saved: tuple[Path, dict[str, Any]], run: str) -> dict[str, str]:
    """The digests of the whole tensors that the ranks of this run held when they saved the newest."""
    answers = saved[1]
    known: dict[str, str] = {
        "ddp": answers["ddp"][0].get("whole"),
        "fsdp": answers["fsdp"][0]["later"],
        "dcp": answers["fsdp"][0]["taken"],
    }[run]
    return known


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
@pytest.mark.parametrize("run", ["ddp", "fsdp", "dcp"])
def test_exported_weights_are_those_that_all_ranks_held(holdfast_command, saved, tmp_path, run, ending):
    target = tmp_path / f"weights{ending}"
    assert holdfast_command("export", saved[0] / run, "--to", target).code == 0
    loaded = load_file(target) if ending == ".safetensors" else torch.load(target, weights_only=True)
    assert set(loaded) == PARAMETERS | BUFFERS
    assert {name: digest(loaded[name]) for name in PARAMETERS} == {
        name: held(saved, run)[name] for name in PARAMETERS
    }
    if run != "dcp":
        # Of what each rank has for itself, rank 0's. (DCP keeps the one of whichever rank it likes.)
        buffers = saved[1][run][0]["own"]["buffers"]
        assert all(digest(loaded[name]) in buffers for name in BUFFERS)


@pytest.mark.parametrize("run", ["ddp", "fsdp"])
def test_dcp_loads_everything_that_ranks_saved(holdfast_command, saved, tmp_path, run):
    target = tmp_path / "exported"
    answer = holdfast_command("export", saved[0] / run, "--to", target)
    assert answer.code == 0
    assert "put together from" in answer.out
    wanted = {
        "model": {"first.weight": torch.zeros(13, 5)},
        "optimizer": {"state": {1: {"exp_avg": torch.zeros(13, 5)}}},
        "run": {"step": 0},
    }
    dcp.load(wanted, checkpoint_id=target, no_dist=True)
    assert digest(wanted["model"]["first.weight"]) == held(saved, run)["first.weight"]
    assert digest(wanted["optimizer"]["state"][1]["exp_avg"]) == held(saved, run)["first.weight.exp_avg"]
    assert wanted["run"]["step"] == {"ddp": 4, "fsdp": 5}[run]


def test_what_dcp_saved_is_exported_for_dcp_with_its_nesting(holdfast_command, saved, tmp_path):
    target = tmp_path / "exported"
    assert holdfast_command("export", saved[0] / "dcp", "--to", target).code == 0
    wanted: dict[str, Any] = {
        "optim": {"state": {"first.weight": {"exp_avg": torch.zeros(13, 5)}}},
        "step": 0,
        "lists": [0, {"two": 0.0}],
    }
    dcp.load(wanted, checkpoint_id=target, no_dist=True)
    moment = wanted["optim"]["state"]["first.weight"]["exp_avg"]
    assert digest(moment) == held(saved, "dcp")["first.weight.exp_avg"]
    assert wanted["step"] == 4
    assert wanted["lists"] == [1, {"two": 2.5}]


def test_the_same_state_under_ddp_and_fsdp_has_equal_tensors(holdfast_command, saved):
    base, _ = saved
    said = holdfast_command("diff", base / "ddp", 4, 4, "--other-run", base / "fsdp", "--json").json
    assert (said["a"]["ranks"], said["b"]["ranks"]) == (2, 3)
    assert said["tensors"] == said["reshaped"] == said["removed"] == said["added"] == []
    # 10 + 21 of all, and on two more ranks three buffers and seven counts of steps.
    assert said["tensors_equal"] == 10 + 21 + 2 * (3 + 7)
    paths = {change["path"] for change in said["values"]}
    assert "rank 2: rng/torch" in paths, "a rank that is new draws from a stream of its own"
    assert not any(path.startswith("rank 1: rng") for path in paths)


def test_differences_between_steps_equal_those_that_torch_computes(holdfast_command, saved):
    run = saved[0] / "fsdp"
    said = holdfast_command("diff", run, 4, 5, "--json").json
    before, after = holdfast.load_weights(run, 4), holdfast.load_weights(run, 5)
    changed = {change["path"]: change for change in said["tensors"]}
    for name, old in before.items():
        expected = (old.double() - after[name].double()).abs().max().item()
        assert changed[f"model/{name}"]["max_abs"] == pytest.approx(expected, rel=1e-12)
        assert changed[f"model/{name}"]["differing"] == int((old != after[name]).sum())
    assert {f"rank {rank}: model/norm.running_mean" for rank in (1, 2)} <= set(changed)
    assert "rank 0: model/norm.running_mean" not in changed
    assert "3 ranks" in holdfast_command("diff", run, 4, 5).out


def test_a_run_and_what_dcp_saved_of_it_have_the_same_parameters(holdfast_command, saved):
    base, _ = saved
    said = holdfast_command("diff", base / "fsdp", 4, 4, "--other-run", base / "dcp", "--json").json
    told = {change["path"] for change in said["tensors"]} | {*said["removed"], *said["added"]}
    assert not {f"model/{name}" for name in PARAMETERS} & told
    assert said["tensors_equal"] >= len(PARAMETERS)


def test_show_counts_over_all_ranks(holdfast_command, saved):
    base, _ = saved
    said = holdfast_command("show", base / "ddp", "--tensors", "--json").json
    assert said["ranks"] == 2
    # Seven parameters once, three buffers of either rank.
    parameters, buffers = 4 * (1 + 65 + 13 + 13 + 13 + 39 + 3), 2 * (4 * 13 + 4 * 13 + 8)
    model = said["contains"]["model"]
    assert (model["tensors"], model["bytes"]) == (7 + 2 * 3, parameters + buffers)
    assert model["role"] == "weights"
    shapes = {tensor["path"]: tensor["shape"] for tensor in said["tensors"]}
    assert shapes["model/first.weight"] == [13, 5]
    assert shapes["rank 1: model/norm.running_mean"] == [13]
    assert "ranks       2, which saved it together" in holdfast_command("show", base / "ddp").out
    assert "ranks       3, which saved it together" in holdfast_command("show", base / "dcp").out


def test_show_puts_the_files_of_many_ranks_in_one_row(holdfast_command, saved, monkeypatch):
    monkeypatch.setattr("holdfast.cli.stored.show_cmd._FILES_SHOWN", 5)
    out = holdfast_command("show", saved[0] / "ddp").out
    assert "model-r*.safetensors (2 files)" in out
    assert "model-r00000" not in out


def test_show_says_so_where_only_rank_0_is_known(holdfast_command, saved, tmp_path):
    run = Path(shutil.copytree(saved[0] / "ddp", tmp_path / "own"))
    (record,) = run.rglob("rank-r00001.json")
    flip(record)
    answer = holdfast_command("show", run)
    assert answer.code == 0
    assert "sizes are those of rank 0 only: rank-r00001.json" in answer.err
    assert holdfast_command("show", run, "--tensors").code == 1


def test_list_has_a_column_of_ranks_only_where_there_are_several(holdfast_command, saved, finished_run):
    header, *rows = holdfast_command("list", saved[0] / "fsdp").out.splitlines()
    column = header.split().index("ranks")
    assert header.split()[column + 1] == "why"
    # A time has two words, and so has a size.
    assert all(row.split()[column + 2] == "3" for row in rows[:-1])
    assert "ranks" not in holdfast_command("list", finished_run).out
    listed = holdfast_command("list", finished_run, "--json").json["checkpoints"]
    assert {one["ranks"] for one in listed} == {1}


def test_damage_in_any_ranks_file_is_never_compared_or_exported(holdfast_command, saved, tmp_path):
    run = Path(shutil.copytree(saved[0] / "fsdp", tmp_path / "own"))
    (newest,) = (run / "ckpt").glob("*-s000000000005-*")
    flip(newest / "model-r00002.safetensors")
    answer = holdfast_command("diff", run, 4, 5)
    assert answer.code == 1
    assert "model-r00002.safetensors" in answer.err
    for ending in (".safetensors", ".pt", ""):
        target = tmp_path / f"exported{ending}"
        assert holdfast_command("export", run, "--to", target, "--step", 5).code == 1
        assert not target.exists()
        answer = holdfast_command("export", run, "--to", target, "--json")
        assert (answer.code, answer.json["step"]) == (3, 4)
        assert "passed over" in answer.err


def test_nothing_but_torchs_own_formats_needs_torch(saved, tmp_path):
    ddp, fsdp, by_dcp = (str(saved[0] / run) for run in ("ddp", "fsdp", "dcp"))
    script = (
        "import sys; from holdfast.cli.main import main\n"
        f"ddp, fsdp, dcp = {ddp!r}, {fsdp!r}, {by_dcp!r}\n"
        "codes = [main(['list', ddp]), main(['show', ddp, '--tensors', '--policy']), main(['show', dcp]),"
        " main(['diff', ddp, '4', '4', '--other-run', fsdp]),"
        " main(['diff', fsdp, '4', '4', '--other-run', dcp]),"
        f" main(['export', fsdp, '--to', {str(tmp_path / 'a.safetensors')!r}]),"
        f" main(['export', dcp, '--to', {str(tmp_path / 'b.safetensors')!r}])]\n"
        "assert codes == [0] * 7, codes\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# ---- by hand: what the training above does not do

WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)


def columns_of(rank: int, world: int = 2) -> Tensor:
    width = 6 // world
    return Tensor(
        WHOLE[:, rank * width : (rank + 1) * width], {"global": [4, 6], "offset": [0, rank * width]}
    )


def test_columns_of_ranks_are_one_tensor_again(holdfast_command, tmp_path):
    save_by_hand(tmp_path / "two", [{"w": columns_of(rank)} for rank in range(2)])
    save_by_hand(tmp_path / "three", [{"w": columns_of(rank, 3)} for rank in range(3)])
    rows = [Tensor(WHOLE[rank : rank + 1], {"global": [4, 6], "offset": [rank, 0]}) for rank in range(4)]
    save_by_hand(tmp_path / "rows", [{"w": row} for row in rows])
    target = tmp_path / "w.safetensors"
    assert holdfast_command("export", tmp_path / "two", "--to", target).code == 0
    np.testing.assert_array_equal(load_file(target)["w"].numpy(), WHOLE)
    for other in ("three", "rows"):
        answer = holdfast_command(
            "diff", tmp_path / "two", 1, 1, "--other-run", tmp_path / other, "--exit-code"
        )
        assert answer.code == 0
        assert "identical: 1 tensor, 0 values" in answer.out


def test_types_unknown_to_safetensors_and_tied_and_empty_tensors(holdfast_command, tmp_path):
    numbers, odd = np.arange(3) * 1j, {"dtype": "complex128", "shape": [3], "shared": True}
    states = [
        {
            "odd": Tensor(numbers if rank == 1 else None, odd),
            "w": Tensor(WHOLE if rank == 0 else None, {"shared": True}),
            "again": Tensor(WHOLE if rank == 0 else None, {"shared": True, "name": "w"}),
            "none": Tensor(np.zeros((0, 3), np.float32) if rank == 1 else None, {"shared": True}),
            "few": Tensor(WHOLE[: 4 if rank == 0 else 0], {"global": [4, 6], "offset": [4 * rank, 0]}),
        }
        for rank in range(2)
    ]  # fmt: skip
    save_by_hand(tmp_path / "run", states)
    target = tmp_path / "w.safetensors"
    said = holdfast_command("export", tmp_path / "run", "--to", target, "--json").json
    assert said["tied"] == [{"tensor": "model/again", "same_as": "model/w"}]
    loaded = load_file(target)
    assert loaded["odd"].numpy().tobytes() == numbers.tobytes()
    assert loaded["none"].shape == (0, 3)
    np.testing.assert_array_equal(loaded["few"].numpy(), WHOLE)
    tensors = holdfast_command("show", tmp_path / "run", "--tensors", "--json").json["tensors"]
    kinds = {tensor["path"]: (tensor["type"], tensor["shape"]) for tensor in tensors}
    assert kinds["model/odd"] == ("complex128", [3])
    assert kinds["model/none"] == ("float32", [0, 3])


def test_values_of_other_ranks_are_told_where_they_differ(holdfast_command, tmp_path):
    save_by_hand(tmp_path / "a", [{"x": 1, "y": 5}, {"x": 1, "y": 6}])
    save_by_hand(tmp_path / "b", [{"x": 1, "y": 5}, {"x": 2, "y": 6}, {"x": 1}])
    said = holdfast_command("diff", tmp_path / "a", 1, 1, "--other-run", tmp_path / "b", "--json").json
    assert said["values"] == [{"path": "rank 1: model/x", "before": "1", "after": "2"}]
    assert said["removed"] == ["rank 2: model/y"]
    assert said["added"] == []


@pytest.mark.parametrize("offset", [[0, 1], [0, 5], [2, 3]])
def test_parts_that_leave_a_hole_or_stick_out_are_refused(holdfast_command, tmp_path, offset):
    wrong = Tensor(WHOLE[:, :2], {"global": [4, 6], "offset": offset})
    save_by_hand(tmp_path / "run", [{"w": columns_of(0)}, {"w": wrong}])
    for verb in (["show", "--tensors"], ["export", "--to", tmp_path / "w.safetensors", "--step", 1]):
        answer = holdfast_command(verb[0], tmp_path / "run", *verb[1:])
        assert answer.code == 1
        assert "model/w" in answer.err
        assert "bug in holdfast" not in answer.err


def test_a_tensor_that_nobody_wrote_is_named(holdfast_command, tmp_path):
    nobody = {"w": Tensor(None, {"shared": True})}
    save_by_hand(tmp_path / "run", [nobody, nobody])
    assert (
        "model/w is in none of the checkpoint's files"
        in holdfast_command("show", tmp_path / "run", "--tensors").err
    )


def test_a_record_that_claims_larger_files_is_refused(holdfast_command, tmp_path):
    save_by_hand(tmp_path / "run", [{"w": columns_of(rank)} for rank in range(2)], lie=4096)
    answer = holdfast_command("show", tmp_path / "run", "--tensors")
    assert answer.code == 1
    assert "bug in holdfast" not in answer.err


# ---- putting together

FILE = bytes(np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8))


@pytest.fixture(scope="module")
def one_file(tmp_path_factory):
    store = CheckpointStore(tmp_path_factory.mktemp("one") / "run")
    store.claim()
    draft = CheckpointDraft(writer_epoch=store.writer_epoch, step=1, created="", reason="")
    committed = write_checkpoint(store, draft, [BytesSource("data.bin", FILE)])
    store.release()
    return store, look(store, committed.name)


@st.composite
def spread_tensors(draw):
    """A shape, and the blocks of a grid over it, each somewhere in the file."""
    item = draw(st.sampled_from([1, 2, 4, 8]))
    cuts = draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=3))
    blocks = [((), ())]
    for lengths in cuts:
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        blocks = [
            ((*at, start), (*shape, n))
            for at, shape in blocks
            for start, n in zip(starts, lengths, strict=True)
        ]
    pieces = []
    for offset, shape in draw(st.permutations(blocks)):
        nbytes = item * int(np.prod(shape, dtype=int))
        start = draw(st.integers(0, len(FILE) - nbytes))
        pieces.append(Piece("data.bin", start, start + nbytes, Region(offset, shape)))
    whole = tuple(sum(lengths) for lengths in cuts)
    return item, StoredTensor("t", "uint8", "U8", whole, tuple(pieces))


@settings(max_examples=60, deadline=None)
@given(spread=spread_tensors())
def test_blocks_come_together_as_numpy_puts_them(one_file, spread):
    item, tensor = spread
    expected = np.zeros((*tensor.shape, item), np.uint8)
    for piece in tensor.pieces:
        box = tuple(slice(a, a + n) for a, n in zip(piece.region.offset, piece.region.shape, strict=True))
        block = np.frombuffer(FILE, np.uint8)[piece.start : piece.stop]
        expected[box] = block.reshape(*piece.region.shape, item)
    require_complete("t", tensor.shape, tensor.pieces)
    assert bytes(read_tensors(*one_file, [tensor])[tensor]) == expected.tobytes()


@settings(max_examples=30, deadline=None)
@given(spread=spread_tensors(), which=st.integers(0, 26))
def test_a_missing_block_is_noticed(spread, which):
    _, tensor = spread
    fewer = [piece for number, piece in enumerate(tensor.pieces) if number != which % len(tensor.pieces)]
    with pytest.raises(CorruptCheckpoint, match="not complete"):
        require_complete("t", tensor.shape, fewer)


# ---- DCP's own states


@pytest.fixture(scope="module")
def dcp_states(tmp_path_factory):
    """Step 1: an application's state; step 2: a bare state_dict."""
    path = tmp_path_factory.mktemp("dcp") / "run"
    weights = {"w": torch.arange(6.0).reshape(2, 3), "odd": torch.arange(3).to(torch.complex128)}
    extras = {"array": np.arange(3), "tuple": (1, torch.ones(2))}
    with HoldfastWriter(path) as writer:
        app = {
            "app": {"model": weights, "optim": {"m": torch.ones(2)}},
            "other": {"t": torch.ones(1), **extras},
        }
        dcp.save(app, checkpoint_id="1", storage_writer=writer)
        dcp.save(dict(weights), checkpoint_id="2", storage_writer=writer)
    return path, weights


def test_a_model_inside_of_dcps_state_is_named_by_its_keys(holdfast_command, dcp_states, tmp_path):
    path, weights = dcp_states
    answer = holdfast_command("export", path, "--to", tmp_path / "a.pt", "--step", 1)
    assert answer.code == 1
    assert "it holds app, other; use --model" in answer.err
    for step, model in ((1, ["--model", "app.model"]), (2, [])):
        target = tmp_path / f"{step}.pt"
        assert holdfast_command("export", path, "--to", target, "--step", step, *model).code == 0
        loaded = torch.load(target, weights_only=True)
        assert set(loaded) == set(weights)
        assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_objects_with_tensors_survive_the_way_through_dcp(holdfast_command, dcp_states, tmp_path):
    path, weights = dcp_states
    assert holdfast_command("export", path, "--to", tmp_path / "out", "--step", 1).code == 0
    wanted: dict[str, Any] = {
        "app": {"model": {name: torch.zeros_like(value) for name, value in weights.items()}},
        "other": {"array": None, "tuple": (0, torch.zeros(2))},
    }
    dcp.load(wanted, checkpoint_id=tmp_path / "out", no_dist=True)
    assert all(torch.equal(wanted["app"]["model"][name], weights[name]) for name in weights)
    np.testing.assert_array_equal(wanted["other"]["array"], np.arange(3))
