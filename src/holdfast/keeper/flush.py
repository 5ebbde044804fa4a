"""Before a job leaves its nodes: the newest checkpoint that only they have is put into the run's folder.

All nodes that are left serve what they keep; each writes a part; the leader commits. What is missing is
computed from parity. A checkpoint that cannot be had whole is passed over for the next older one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, StoreError, StoreNotFound
from holdfast.events import Flushed
from holdfast.format.manifest import Manifest, parse_manifest
from holdfast.format.sealed import seal_of
from holdfast.keeper.flush_part import share_out
from holdfast.keeper.node_caches import has_node_caches
from holdfast.keeper.roster import Gone, Said
from holdfast.stores.base import Store
from holdfast.stores.remote import RemoteStore
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.checked_files import CheckedFiles
from holdfast.tiers.opening import readable_tiers

if TYPE_CHECKING:
    from holdfast.keeper.lead import Lead

SERVE_SECONDS = 30.0
GIVE_BACK_SECONDS = 30.0


@dataclass(frozen=True)
class Source:
    """The store of one logical node on one keeper's machine."""

    keeper: int
    host: str
    port: int
    node: str

    @property
    def label(self) -> str:
        return f"{self.node} on {self.host}"


@dataclass(frozen=True)
class _Outcome:
    """`is_safe`: nothing that the nodes keep is newer than what lasts."""

    said: str
    is_safe: bool = True


def flush(lead: Lead, *, give_back: bool = True) -> str:
    """What happened, for people. Never raises: a job that ends must be able to end."""
    run = lead.run_folder
    try:
        if run is None or not has_node_caches(run):
            return ""
        outcome = _Flush(lead, run).flush()
        if outcome.is_safe and give_back:
            _ask(lead, {"chore": "give back", "run": run}, GIVE_BACK_SECONDS)
        return outcome.said
    except HoldfastError as error:
        return f"what the nodes keep was not saved: {error}"


class _Flush:
    def __init__(self, lead: Lead, run: str) -> None:
        self._lead = lead
        self._run = run

    def flush(self) -> _Outcome:
        here = self._newest_lasting()
        # A node that is lost meanwhile changes what can be had: each time with those that are left.
        for _ in range(len(self._lead.roster.members)):
            with contextlib.suppress(_Lost):
                return self._from_those_left(here)
        raise StoreError("nodes were lost faster than their checkpoints could be saved")

    def _newest_lasting(self) -> str:
        try:
            tiers = readable_tiers(self._run)
            return max((n for t in tiers if t.must_answer for n in t.store.names()), default="")
        except HoldfastError:
            # A bucket that does not answer: then at worst something is copied that it has already.
            return max(CheckpointStore(self._run).names(), default="")

    def _from_those_left(self, here: str) -> _Outcome:
        with self._sources() as stores:
            names = {name for store in stores.values() for name in _names(store)}
            newer = sorted((name for name in names if name > here), reverse=True)
            if not newer:
                return _Outcome(f"the newest checkpoint is {here} in {self._run}" if here else "")
            reasons = []
            for name in newer:
                try:
                    self._bring(name, stores)
                except _Lost:
                    raise
                except HoldfastError as error:
                    reasons.append(f"{name} is not whole any more: {error.message}")
                    self._lead.warn(reasons[-1])
                    continue
                return _Outcome(f"{name} was only on the nodes and is in {self._run} now")
        older = f"{here} in {self._run} is the newest that is whole" if here else "nothing is whole"
        return _Outcome("; ".join([*reasons, older]), is_safe=False)

    @contextlib.contextmanager
    def _sources(self) -> Iterator[dict[Source, RemoteStore]]:
        answers = _ask(self._lead, {"chore": "serve", "run": self._run}, SERVE_SECONDS)
        with contextlib.ExitStack() as opened:
            stores = {}
            for keeper, answer in sorted(answers.items()):
                for node in answer.get("nodes", ()):
                    host, port = answer["address"]
                    source = Source(keeper, host, port, node)
                    remote = RemoteStore((host, port), self._lead.meeting.token, node)
                    stores[source] = opened.enter_context(remote)
            yield stores

    def _bring(self, name: str, stores: dict[Source, RemoteStore]) -> None:
        """Into the run's folder, whole and committed, or not at all."""
        started = self._lead.clock.monotonic()
        manifest = next(m for m in (_manifest(store, name) for store in stores.values()) if m is not None)
        same = {source: store for source, store in stores.items() if _manifest(store, name) == manifest}
        parsed = parse_manifest(manifest)
        with CheckpointStore(self._run) as target:
            # Those who might still write are dead, or lost and fenced off by this.
            epoch = target.claim(take_over=True)
            with contextlib.suppress(StoreNotFound):
                target.abandon(name)
            target.begin(name, sum(record.size for record in parsed.files))
            try:
                self._write(name, parsed, manifest, same, epoch)
                target.publish(name, manifest)
            except BaseException:
                with contextlib.suppress(HoldfastError):
                    target.abandon(name)
                raise
        size = sum(record.size for record in parsed.files)
        seconds = self._lead.clock.monotonic() - started
        self._lead.tell(
            Flushed(time=self._lead.clock.wall(), name=name, tier=self._run, seconds=seconds, bytes=size)
        )

    def _write(
        self, name: str, parsed: Manifest, manifest: bytes, stores: dict[Source, RemoteStore], epoch: int
    ) -> None:
        by_label: dict[str, Store] = {source.label: store for source, store in stores.items()}
        keeper_of = {source.label: source.keeper for source in stores}
        with CheckedFiles(name, by_label) as files:
            files.know(parsed.files)
            holders = {r.name: [keeper_of[label] for label in files.holders(r.name)] for r in parsed.files}
        sizes = {record.name: record.size for record in parsed.files}
        shares = share_out(sizes, holders, list(self._lead.roster.members))
        order = {
            "chore": "write", "run": self._run, "epoch": epoch, "name": name, "seal": seal_of(manifest),
            "sources": [[s.keeper, s.host, s.port, s.node] for s in stores],
        }  # fmt: skip
        parts = [(keeper, {**order, "files": mine}) for keeper, mine in shares.items()]
        for keeper, answer in _ask_each(self._lead, parts, self._lead.settings.flush_seconds):
            if answer is None:
                raise _Lost(f"keeper {keeper} was lost while it wrote its part")
            if "error" in answer:
                raise StoreError(str(answer["error"]))


class _Lost(StoreError):
    """A keeper that was writing is gone."""


def _ask(lead: Lead, chore: dict[str, Any], seconds: float) -> dict[int, dict[str, Any]]:
    """Everybody, at once; those who fail or are gone do not answer."""
    answers = _ask_each(lead, [(number, chore) for number in lead.roster.members], seconds)
    return {keeper: answer for keeper, answer in answers if answer is not None and "error" not in answer}


def _ask_each(
    lead: Lead, chores: list[tuple[int, dict[str, Any]]], seconds: float
) -> list[tuple[int, dict[str, Any] | None]]:
    """One answer for each chore; None from a keeper that is gone or does not answer in time."""
    answers: dict[int, dict[str, Any]] = {}
    waiting = {}
    for number, (keeper, chore) in enumerate(chores):
        lead.roster.tell(keeper, {"say": "chore", **chore, "id": number})
        waiting[number] = keeper
    end = lead.clock.monotonic() + seconds
    while waiting and (left := end - lead.clock.monotonic()) > 0:
        news = lead.hear(left)
        if isinstance(news, Gone):
            waiting = {number: keeper for number, keeper in waiting.items() if keeper != news.card.number}
        elif isinstance(news, Said) and news.message.get("say") == "done":
            number = int(news.message["id"])
            if (
                waiting.get(number) == news.card.number
                and news.message["chore"] == chores[number][1]["chore"]
            ):
                del waiting[number]
                answers[number] = news.message
    return [(keeper, answers.get(number)) for number, (keeper, _) in enumerate(chores)]


def _names(store: RemoteStore) -> list[str]:
    try:
        return store.names()
    except HoldfastError:
        return []


def _manifest(store: RemoteStore, name: str) -> bytes | None:
    try:
        return store.manifest(name)
    except HoldfastError:
        return None
