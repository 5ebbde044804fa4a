"""`holdfast plan`, with and without --simulate, as a user types it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.events import Event, Progress, RunStarted, SaveCommitted, SnapshotTaken
from holdfast.plan.run_costs import costs_in
from holdfast.plan.strategies import OURS, OURS_LEARNED

QUICK = ["--seeds", "20", "--days", "10"]
CLUSTER = ["--nodes", "2000", "--gpus-per-node", "8", "--state", "1.4TB"]
TIERS = ["--tiers", "partner:2GB/s/node", "/lustre:500GB/s"]


def holdfast(*words: str) -> int:
    return main(words)


def test_plan_prints_the_assumptions_a_table_and_a_recommendation(capsys: pytest.CaptureFixture[str]) -> None:
    assert holdfast("plan", *CLUSTER, "--mtbf-node", "250d", *TIERS, *QUICK, "--gpu-hour-price", "2") == 0
    text = capsys.readouterr().out
    assert "one failure in 3 h" in text
    assert "money lost/d" in text
    for name in ("every epoch", "Young/Daly, sync", "CheckFreq", "COCI", "SCR, flush every 10th", "holdfast"):
        assert name in text
    assert "Save to partner every" in text


def test_plan_json_holds_breakdowns_that_sum_to_one(capsys: pytest.CaptureFixture[str]) -> None:
    holdfast("plan", *CLUSTER, "--preset", "llama3-405b", *TIERS, *QUICK, "--json")
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert any("arXiv 2407.21783" in line for line in plan["assumptions"])
    assert set(plan["recommended_interval_seconds"]) == {"partner", "/lustre"}
    for row in plan["policies"]:
        assert sum(row["breakdown"].values()) == pytest.approx(1.0)
        assert row["breakdown"]["useful"] == pytest.approx(row["goodput"])


def test_plot_is_a_self_contained_drawing_of_every_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.svg"
    holdfast("plan", *CLUSTER, "--mtbf", "3 h", *TIERS, *QUICK, "--plot", str(out))
    capsys.readouterr()
    text = out.read_text()
    root = ElementTree.fromstring(text)
    labels = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {OURS, OURS_LEARNED} <= set(labels)
    assert "href" not in text
    assert "<script" not in text
    bars = [float(e.attrib["width"]) for e in root.iter() if e.tag.endswith("rect") and len(e)]
    assert sum(bars) == pytest.approx((980 - 220 - 90) * 10, rel=1e-3)  # ten policies, each fills its row


def journal(saves: int = 5, failures: int = 2) -> list[Event]:
    events: list[Event] = []
    time = 0.0
    for spell in range(failures + 1):
        events.append(RunStarted(time=time, step=0, host="n", pid=1, writer_epoch=spell))
        for i in range(saves):
            time += 100
            cold = 5.0 if i == 0 else 1.0
            events.append(
                SnapshotTaken(
                    time=time, step=i, mode="m", stall_seconds=0.2 * cold, copy_seconds=0.1, bytes=1000
                )
            )
            events.append(
                SaveCommitted(time=time, step=i, name="x", persist_seconds=4.0 * cold, bytes=1000, reason="r")
            )
            events.append(Progress(time=time, step=i, epoch=0, step_seconds=0.5))
    return events


def test_measured_costs_leave_out_the_cold_save_of_each_process() -> None:
    found = costs_in(journal())
    assert found.stall == pytest.approx(0.2)
    assert found.persist == pytest.approx(4.0)
    assert found.failures == 2
    assert found.mtbf == pytest.approx(1500 / 2)
    assert found.step == 0.5


def test_from_takes_the_measured_costs_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").write_text("".join(event.to_line() + "\n" for event in journal()))
    holdfast("plan", "--from", str(tmp_path), "--nodes", "4", *QUICK, "--json")
    plan = json.loads(capsys.readouterr().out)
    assert plan["mtbf_seconds"] == pytest.approx(750.0)
    assert any("15 saves, 2 failures" in line for line in plan["assumptions"])
    assert any("durable after 4 s" in line for line in plan["assumptions"])


def test_from_scales_to_another_state_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").write_text("".join(event.to_line() + "\n" for event in journal()))
    holdfast("plan", "--from", str(tmp_path), "--state", "10kB", "--mtbf", "1 h", *QUICK, "--json")
    plan = json.loads(capsys.readouterr().out)
    assert any("durable after 40 s" in line for line in plan["assumptions"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nodes", "4"], "how large is the training state"),
        (["--nodes", "0", "--state", "1GB"], "must be positive"),
        (["--from", "nowhere"], "holds no journal"),
        (["--state", "1GB", "--mtbf", "0 h"], "must be positive"),
    ],
)
def test_missing_or_impossible_words_are_explained(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert holdfast("plan", *words) == 1
    assert sentence in capsys.readouterr().err


def test_simulate_shows_the_closed_form_beside_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    holdfast(
        "plan",
        "--simulate",
        *CLUSTER,
        "--mtbf",
        "3 h",
        "--tiers",
        "/l:50GB/s",
        "--interval",
        "10 min",
        "--json",
    )
    found = json.loads(capsys.readouterr().out)
    assert found["goodput"] == pytest.approx(found["closed_form"], rel=0.005)


def test_simulate_shows_what_not_knowing_the_rate_costs(capsys: pytest.CaptureFixture[str]) -> None:
    holdfast("plan", "--simulate", *CLUSTER, "--mtbf", "3 h", *TIERS, *QUICK, "--json")
    said = json.loads(capsys.readouterr().out)
    assert 0 <= said["goodput"] - said["goodput_not_knowing_the_rate"] < 0.005


def test_simulate_replays_a_trace_and_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "up.json"
    trace.write_text("[3600, 7200, 60, 40000]")
    for extra in (
        ["--wrong-prior", "5"],
        ["--policy", "CheckFreq"],
        ["--policy", "COCI (equal loss), async"],
        [],
    ):
        assert (
            holdfast(
                "plan", "--simulate", *CLUSTER, "--mtbf", "3 h", *TIERS, *QUICK, "--trace", str(trace), *extra
            )
            == 0
        )
    assert capsys.readouterr().out.count("goodput") == 5


@pytest.mark.parametrize("content", ["{}", "[]", "[0]", "[true]", "nonsense"])
def test_a_trace_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    trace = tmp_path / "up.json"
    trace.write_text(content)
    assert (
        holdfast("plan", "--simulate", *CLUSTER, "--mtbf", "3 h", *TIERS, *QUICK, "--trace", str(trace)) == 1
    )


def test_the_old_verb_says_the_same_as_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for words in (["simulate"], ["plan", "--simulate"]):
        assert (
            holdfast(*words, *CLUSTER, "--mtbf", "3 h", *TIERS, *QUICK, "--interval", "10 min", "--json") == 0
        )
        said.append(json.loads(capsys.readouterr().out))
    assert said[0] == said[1]
    assert said[0]["policy"] == "every 10 min"


def test_a_trace_is_replayed_for_all_policies_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "up.json"
    trace.write_text("[1e12]")
    holdfast("plan", *CLUSTER, "--mtbf", "3 h", *TIERS, *QUICK, "--trace", str(trace), "--json")
    assert {row["failures"] for row in json.loads(capsys.readouterr().out)["policies"]} == {0.0}
