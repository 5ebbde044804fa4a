"""What a keeper does for the others once its workers are gone. In the background: it must stay audible."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.keeper.flush_part import Part, write_part
from holdfast.keeper.node_caches import (
    give_memory_back,
    is_protected_here,
    newest_in_caches,
    node_caches,
)
from holdfast.keeper.world import Card
from holdfast.stores.base import Store
from holdfast.stores.remote import RemoteStore
from holdfast.stores.serve import NodeServer

_CLOSE_SECONDS = 10.0


class Chores:
    """One thread, one chore after the other. `done` is called, in that thread, when a result is there."""

    def __init__(self, me: Card, token: bytes, done: Callable[[], None]) -> None:
        self._me = me
        self._token = token
        self._done = done
        self._results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._cancel = threading.Event()
        self._server: NodeServer | None = None
        self._verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "stopped": self._stopped,
            "serve": self._serve,
            "write": self._write,
            "give back": self._give_back,
        }

    def do(self, chore: dict[str, Any]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="holdfast-chores", daemon=True)
            self._thread.start()
        self._waiting.put(chore)

    def finished(self) -> list[dict[str, Any]]:
        """What is to be told to the leader."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._results.get_nowait())
        return found

    def close(self) -> None:
        self._cancel.set()
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
        self.stop_serving()

    def stop_serving(self) -> None:
        """Workers start, and serve themselves."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    # ---- in the thread of the chores

    def _work(self) -> None:
        while (chore := self._waiting.get()) is not None:
            answer = {"say": "done", "chore": chore.get("chore"), "id": chore.get("id")}
            try:
                answer |= self._verbs[str(chore.get("chore"))](chore)
            except HoldfastError as error:
                answer["error"] = error.message[:2000]
            except Exception as error:  # noqa: BLE001  told to the leader, who takes another keeper
                answer["error"] = repr(error)[:2000]
            self._results.put(answer)
            self._done()

    def _stopped(self, chore: dict[str, Any]) -> dict[str, Any]:
        run = chore["run"]
        newest = newest_in_caches(run) if run is not None else None
        protected = newest if newest is not None and is_protected_here(run, newest) else None
        return {
            "say": "stopped", "generation": chore["generation"], "run": run, "newest": newest,
            "protected": protected,
        }  # fmt: skip

    def _serve(self, chore: dict[str, Any]) -> dict[str, Any]:
        stores = node_caches(chore["run"])
        if self._server is None:
            self._server = NodeServer(stores, self._token, host=self._me.address)
        return {"address": list(self._server.address), "nodes": sorted(stores)}

    def _write(self, chore: dict[str, Any]) -> dict[str, Any]:
        part = Part(
            str(chore["run"]), int(chore["epoch"]), str(chore["name"]), str(chore["seal"]),
            tuple(map(str, chore["files"])),
        )  # fmt: skip
        with contextlib.ExitStack() as opened:
            stores: dict[str, Store] = {}
            near = node_caches(part.run)
            for keeper, host, port, node in chore["sources"]:
                label = f"{node} on {host}"
                if keeper == self._me.number:
                    # First, without the detour over the network.
                    stores = {label: near[node], **stores}
                else:
                    stores[label] = opened.enter_context(RemoteStore((host, port), self._token, node))
            return {"bytes": write_part(part, stores, self._cancel)}

    def _give_back(self, chore: dict[str, Any]) -> dict[str, Any]:
        give_memory_back(chore["run"])
        return {}
