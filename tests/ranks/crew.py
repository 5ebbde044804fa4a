"""Ranks to test with: threads, or forked processes where one has to die, around a real TCPStore."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import PrefixStore, TCPStore

from holdfast.clock import SystemClock
from holdfast.ranks.join import Place, join
from holdfast.ranks.store import RankStore
from holdfast.ranks.team import Team
from holdfast.ranks.torch_store import TorchRankStore

T = TypeVar("T")
LONG = 30.0


def serve() -> TCPStore:
    return TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


def connect(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=LONG))


class Pool:
    """Connections are used again: where names are resolved slowly, one in thirty takes five seconds."""

    def __init__(self) -> None:
        self.server = serve()
        self._idle: list[TCPStore] = []
        self._crews = itertools.count()

    @contextmanager
    def scope(self) -> Iterator[PooledStore]:
        """Keys of its own. Connections come back when all that used them has ended."""
        taken: list[TCPStore] = []
        yield PooledStore(self, taken, f"crew{next(self._crews)}", self.take(taken))
        self._idle += taken

    def take(self, taken: list[TCPStore]) -> TCPStore:
        try:
            raw = self._idle.pop()
        except IndexError:
            raw = connect(self.server.port)
        taken.append(raw)
        return raw


class PooledStore(TorchRankStore):
    def __init__(self, pool: Pool, taken: list[TCPStore], prefix: str, raw: TCPStore) -> None:
        super().__init__(PrefixStore(prefix, raw))
        self._pool, self._taken, self._prefix, self._raw = pool, taken, prefix, raw

    def clone(self) -> PooledStore:
        return PooledStore(self._pool, self._taken, self._prefix, self._pool.take(self._taken))

    def scoped(self, prefix: str) -> PooledStore:
        return PooledStore(self._pool, self._taken, f"{self._prefix}/{prefix}", self._raw)


@functools.cache
def pool() -> Pool:
    return Pool()


def in_threads(jobs: list[Callable[[], T]], limit: float = LONG) -> list[T | BaseException]:
    """What each job returned or raised."""
    futures: list[Future[T]] = [Future() for _ in jobs]

    def run(future: Future[T], job: Callable[[], T]) -> None:
        try:
            future.set_result(job())
        except BaseException as error:  # noqa: BLE001  the test looks at it
            future.set_exception(error)

    for future, job in zip(futures, jobs, strict=True):
        threading.Thread(target=run, args=(future, job), daemon=True).start()
    return [future.exception(limit) or future.result() for future in futures]


def join_all(store: RankStore, world: int, *, limit: float = LONG) -> list[Team]:
    def one(rank: int) -> Callable[[], Team]:
        place = Place(host=f"host{rank // 2}")
        mine = store.clone()
        return lambda: join(mine, SystemClock(), rank=rank, world=world, place=place, limit=limit)

    teams = in_threads([one(rank) for rank in range(world)])
    for team in teams:
        assert isinstance(team, Team), team
    return teams  # type: ignore[return-value]


@contextmanager
def crew(world: int) -> Iterator[list[Team]]:
    """The teams of `world` ranks that live in threads of this process."""
    with pool().scope() as store:
        teams = join_all(store, world)
        yield teams
        for team in teams:
            team.close()


class Child:
    """A forked process with its own end of a socket pair; a line each way keeps the test in step with it."""

    def __init__(self, work: Callable[[Any, Any], None]) -> None:
        mine, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            mine.close()
            try:
                work(theirs.makefile("r"), lambda word: theirs.sendall(f"{word}\n".encode()))
            except BaseException as error:  # noqa: BLE001  the fork must not return into the test
                with suppress(OSError):
                    theirs.sendall(f"raised {error!r}\n".encode())
            finally:
                os._exit(0)
        theirs.close()
        self._socket = mine
        mine.settimeout(LONG)
        self._lines = mine.makefile("r")

    def hear(self) -> str:
        return self._lines.readline().strip()

    def tell(self, word: str) -> None:
        self._socket.sendall(f"{word}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._lines.close()
        self._socket.close()
