"""One checkpoint of many ranks in the stores of their nodes, all or nothing.

    first ballot     every rank writes its files into the store of its node, and says what it wrote
                     rank 0: all there, all of one step? Composes the manifest and shows it to all
    second ballot    one rank of each node settles that manifest there, and everybody says so
                     rank 0: all there? Only now does the checkpoint count

The manifest exists only after every file is durable, so a node that settled while another failed holds a
checkpoint that is whole or cannot be read, and never half of one. Whoever learns for certain that it failed
takes its part away.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.checkpoints.rank_claims import RankClaims
from holdfast.checkpoints.write import CheckpointDraft, Committed, draft_manifest
from holdfast.checkpoints.write_together import compose, report, words_of, write_mine
from holdfast.errors import HoldfastError, InternalError, OutcomeUnknown, StoreError
from holdfast.format.manifest import parse_manifest
from holdfast.format.names import parse_checkpoint_name
from holdfast.format.sealed import seal_of
from holdfast.ranks.ballot import Ballot
from holdfast.ranks.team import Team
from holdfast.stores.base import ImageSource
from holdfast.stores.store import CheckpointStore


@dataclass(frozen=True)
class NodeSave:
    """This rank's part. `settles`: it commits for its node. `says` goes to rank 0 with the first vote, which
    answers everybody with `decide(name, what all said)`, a JSON object."""

    store: CheckpointStore
    settles: bool
    says: Mapping[str, Any]
    decide: Callable[[str, Sequence[Mapping[str, Any]]], Mapping[str, Any]]


def write_on_nodes(
    team: Team,
    ballot: Ballot,
    save: str,
    mine: NodeSave,
    draft: CheckpointDraft,
    sources: Sequence[ImageSource],
    agrees_on: Mapping[str, Any],
    claims: RankClaims,
) -> tuple[Committed, Mapping[str, Any]]:
    """Called by every rank with its own files. Returns, when the checkpoint is durable on all nodes, what was
    committed and what rank 0 decided. Only ranks that settle learn the whole manifest."""
    if team.leads:
        return _lead(ballot, save, mine, draft, sources, agrees_on, claims)
    return _follow(ballot, save, mine, draft, sources, agrees_on, claims)


def second_ballot(save: str) -> str:
    return f"{save}/kept"


def _lead(
    ballot: Ballot,
    save: str,
    mine: NodeSave,
    draft: CheckpointDraft,
    sources: Sequence[ImageSource],
    agrees_on: Mapping[str, Any],
    claims: RankClaims,
) -> tuple[Committed, Mapping[str, Any]]:
    store, name, listening = mine.store, str(draft.name), save
    try:
        draft_manifest(store, draft).to_bytes()
        ballot.open(save, name.encode())
        listening = second_ballot(save)
        records = write_mine(store, name, draft, sources)
        ballot.vote(save, report(records, agrees_on, claims, mine.says), None)
        reports = ballot.count(save)
        manifest = compose(draft_manifest(store, draft), reports)
        data = manifest.to_bytes()
        told = mine.decide(name, [json.loads(each)["says"] for each in reports])
        ballot.open(listening, json.dumps(dict(told)).encode() + b"\n" + data)
        if mine.settles:
            store.publish(name, data)
        ballot.vote(listening, b"", None)
        ballot.count(listening)
    except BaseException as error:
        with contextlib.suppress(HoldfastError):
            ballot.announce(listening, None, words_of(error))
        _take_away(mine, name)
        raise
    with contextlib.suppress(HoldfastError):
        # Committed is committed: ranks that do not hear it report a failure and save again.
        ballot.announce(listening, name, None)
    return Committed(draft.name, manifest, seal_of(data)), told


def _follow(
    ballot: Ballot,
    save: str,
    mine: NodeSave,
    draft: CheckpointDraft,
    sources: Sequence[ImageSource],
    agrees_on: Mapping[str, Any],
    claims: RankClaims,
) -> tuple[Committed, Mapping[str, Any]]:
    store, name, voting = mine.store, "", save
    try:
        name = ballot.open(save, None).decode()
        records = write_mine(store, name, draft, sources)
        ballot.vote(save, report(records, agrees_on, claims, mine.says), None)
        voting = second_ballot(save)
        # Rank 0 may itself wait as long for the slowest rank before it shows the manifest.
        told, _, data = ballot.open(voting, None, waits=2).partition(b"\n")
        if mine.settles:
            store.publish(name, data)
    except BaseException as error:
        with contextlib.suppress(HoldfastError):
            ballot.vote(voting, None, words_of(error))
        # Without this rank's second vote nothing can be committed.
        _take_away(mine, name)
        raise
    try:
        ballot.vote(voting, b"", None)
        committed = parse_checkpoint_name(ballot.outcome(voting))
    except OutcomeUnknown:
        raise
    except BaseException:
        _take_away(mine, name)
        raise
    if committed is None:
        raise InternalError(f"the first rank committed {name} under a name that is none")
    if mine.settles:
        return Committed(committed, parse_manifest(data), seal_of(data)), json.loads(told)
    manifest = replace(draft_manifest(store, draft), nonce=committed.nonce, files=tuple(records))
    return Committed(committed, manifest, ""), json.loads(told)


def _take_away(mine: NodeSave, name: str) -> None:
    """Best effort: what stays is not counted on and goes with the next commit."""
    if not mine.settles or not name:
        return
    with contextlib.suppress(StoreError, InternalError):
        if name in mine.store.names():
            mine.store.retire(name)
        else:
            mine.store.abandon(name)
