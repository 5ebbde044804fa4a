"""Real ranks: processes forked from this one, which has torch imported already, joined by gloo."""

from __future__ import annotations

import datetime
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

LIMIT_SECONDS = 60.0


def run_ranks(world: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work(rank, world, *args)` returns on every rank; None for one that died."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as meeting:
        started = []
        for rank in range(world):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(f"{meeting}/store", rank, world, theirs, work, args))
            process.start()
            theirs.close()
            started.append((process, mine))
        answers = [_answer(pipe) for _, pipe in started]
        for process, pipe in started:
            process.join(LIMIT_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
            process.close()
    failed = [answer[1] for answer in answers if answer and answer[0] == "failed"]
    assert not failed, "\n".join(failed)
    return [answer and answer[1] for answer in answers]


def _answer(pipe: Connection) -> Any:
    try:
        return pipe.recv() if pipe.poll(LIMIT_SECONDS) else ("failed", "a rank did not answer in time")
    except EOFError:
        return None


def _run(
    meeting: str, rank: int, world: int, answers: Connection, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    try:
        store = dist.FileStore(meeting, world)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=30)
        )
        answers.send(("done", work(rank, world, *args)))
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  CheckpointException is none of Exception, and all must be told
        answers.send(("failed", f"rank {rank}: {traceback.format_exc()}"))
