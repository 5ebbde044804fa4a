"""Signals and full disks, in real processes: the loop ends at a boundary with a commit, or goes on."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import holdfast

LOOP = """
    import os, sys, signal, resource
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch, holdfast
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 300)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def say(*words):
        print(*words, flush=True)

    def train(run, upto=10**9, before=lambda step: None):
        for step in run.steps(upto):
            before(step)
            model(torch.ones(1, 300)).sum().backward()
            opt.step(); opt.zero_grad()
            run.end_step()
            say("step", run.step)
"""


def start(folder: Path, body: str, **options: Any) -> subprocess.Popen[str]:
    code = textwrap.dedent(LOOP) + f"\nfolder = {str(folder)!r}\n" + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def read_until(child: subprocess.Popen[str], word: str) -> str:
    """What the child said, up to and including this line."""
    assert child.stdout is not None
    said = ""
    for line in child.stdout:
        said += line
        if line.strip() == word:
            return said
    raise AssertionError(f"the child ended before it said {word!r}: {child.communicate()[1][-2000:]}")


def last_step(out: str) -> int:
    return [int(line.split()[1]) for line in out.splitlines() if line.startswith("step")][-1]


def test_signals_end_the_loop_at_a_boundary_with_a_commit_and_the_next_process_goes_on(
    tmp_path: Path,
) -> None:
    """Ctrl-C first; then, in the process that resumed, a storm of SIGTERM."""
    body = """
        with holdfast.Run(folder, every="100000 steps", on_stop="return", model=model, opt=opt) as run:
            say("from", run.step)
            train(run)
            say("stopping", run.stopping)
        say("closed")
    """
    reached = 0
    for number, count in ((signal.SIGINT, 1), (signal.SIGTERM, 50)):
        child = start(tmp_path, body)
        said = read_until(child, f"step {reached + 5}")
        for _ in range(count):
            child.send_signal(number)
        rest, err = child.communicate(timeout=300)
        out = said + rest
        assert child.returncode == 0, err
        assert f"from {reached}\n" in out
        assert "stopping True\nclosed" in out
        reached = last_step(out)
        newest = holdfast.checkpoints(tmp_path)[0]
        assert (newest.step, newest.problem) == (reached, None)
        assert "stopping" in newest.reason
    # One checkpoint for each process, however many signals.
    assert len(holdfast.checkpoints(tmp_path)) == 2


def test_a_disk_that_fills_up_stops_no_training_and_loses_nothing(tmp_path: Path) -> None:
    """A real limit of the kernel on file sizes: writes are cut short and then refused."""
    body = """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        no_limit = resource.RLIM_INFINITY
        with holdfast.Run(folder, every="100000 steps", model=model, opt=opt) as run:
            def before(step):
                if step == 2:
                    say("saved", run.save_now().wait())
                    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, no_limit))
                if step == 5:
                    try:
                        run.save_now().wait()
                    except holdfast.StoreError as error:
                        say("refused", str(error).replace(chr(10), " "))
                    resource.setrlimit(resource.RLIMIT_FSIZE, (no_limit, no_limit))
            train(run, 8, before)
    """
    out, err = start(tmp_path, body).communicate(timeout=300)
    assert "refused" in out, err
    assert "File too large" in out
    assert last_step(out) == 8
    found = holdfast.checkpoints(tmp_path)
    assert [c.step for c in found] == [8, 2]
    assert all(c.problem is None for c in found)


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_a_full_and_then_read_only_file_system_stops_no_training(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(mount)], check=True)
    body = """
        import subprocess
        root = os.path.dirname(folder)
        with holdfast.Run(folder, every="100000 steps", keep=9, model=model, opt=opt) as run:
            def attempt():
                try:
                    run.save_now().wait()
                    say("committed", run.step)
                except holdfast.StoreError as error:
                    say("refused", type(error).__name__)
            def before(step):
                if step == 1:
                    attempt()
                if step == 2:
                    with open(root + "/filler", "wb") as f:
                        try:
                            while True: f.write(bytes(1 << 16))
                        except OSError: pass
                    attempt()
                if step == 3:
                    os.unlink(root + "/filler")
                    # A mount of its own over the first: that one has files open for writing.
                    subprocess.run(["mount", "--bind", root, root], check=True)
                    subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
                    attempt()
                    subprocess.run(["umount", root], check=True)
                if step == 4:
                    attempt()
            train(run, 6, before)
    """
    try:
        out, err = start(mount / "run", body).communicate(timeout=300)
        assert "committed 1" in out, err
        assert out.count("refused") == 2, out
        assert "refused StoreFull" in out
        assert "refused StoreDenied" in out
        assert "committed 4" in out
        assert last_step(out) == 6
        assert all(c.problem is None for c in holdfast.checkpoints(mount / "run"))
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)
