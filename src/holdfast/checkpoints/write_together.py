"""One checkpoint written by many ranks, all or nothing: each writes its own files, the first commits.

The first rank makes the place, everybody writes and reports, and only when every report has come and all of
them fit together is the manifest published. One rank that fails, or says nothing in time, means that there is
no checkpoint, and everybody learns it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.checkpoints.rank_claims import ALIKE, RankClaims, alike_by_object, require_agreement
from holdfast.checkpoints.write import CheckpointDraft, Committed, draft_manifest
from holdfast.errors import HoldfastError, InternalError, SaveError, StoreError
from holdfast.format.manifest import FileRecord, Manifest, parse_file_record
from holdfast.format.names import parse_checkpoint_name
from holdfast.format.sealed import seal_of
from holdfast.ranks.ballot import Ballot
from holdfast.ranks.team import Team
from holdfast.stores.base import ImageSource, Store

# What manifests and directory entries take beside the images, for the free-space check.
_OVERHEAD_BYTES = 4 << 20


def write_together(
    team: Team,
    ballot: Ballot,
    save: str,
    store: Store,
    draft: CheckpointDraft,
    sources: Sequence[ImageSource],
    agrees_on: Mapping[str, Any],
    claims: RankClaims,
) -> Committed:
    """Called by every rank with its own files. `agrees_on` is what must be equal on all ranks.

    Returns when the checkpoint is durable. On other ranks than the first, the manifest that comes back names
    only the rank's own files.
    """
    if team.leads:
        return _lead(team, ballot, save, store, draft, sources, agrees_on, claims)
    try:
        name = ballot.open(save, None).decode()
        records = write_mine(store, name, draft, sources)
    except BaseException as error:
        ballot.vote(save, None, words_of(error))
        raise
    ballot.vote(save, report(records, agrees_on, claims), None)
    committed = parse_checkpoint_name(ballot.outcome(save))
    if committed is None:
        raise InternalError(f"the first rank committed {name} under a name that is none")
    manifest = replace(draft_manifest(store, draft), nonce=committed.nonce, files=tuple(records))
    return Committed(committed, manifest, "")


def decline(team: Team, ballot: Ballot, save: str, error: str) -> None:
    """This rank has nothing to write: tell the others, so that nobody waits for it."""
    with contextlib.suppress(HoldfastError):
        if team.leads:
            ballot.announce(save, None, f"rank 0: {error}")
        else:
            ballot.vote(save, None, error)


def _lead(
    team: Team,
    ballot: Ballot,
    save: str,
    store: Store,
    draft: CheckpointDraft,
    sources: Sequence[ImageSource],
    agrees_on: Mapping[str, Any],
    claims: RankClaims,
) -> Committed:
    name, begun = str(draft.name), False
    try:
        draft_manifest(store, draft).to_bytes()
        mine = sum(source.size for source in sources)
        store.begin(name, mine * team.world + _OVERHEAD_BYTES)
        begun = True
        ballot.open(save, name.encode())
        records = write_mine(store, name, draft, sources)
        ballot.vote(save, report(records, agrees_on, claims), None)
        manifest = compose(draft_manifest(store, draft), ballot.count(save))
        data = manifest.to_bytes()
        store.publish(name, data)
    except BaseException as error:
        with contextlib.suppress(HoldfastError):
            ballot.announce(save, None, words_of(error))
        # Best effort: what a slow rank still writes there is swept later.
        if begun:
            with contextlib.suppress(StoreError, InternalError):
                store.abandon(name)
        raise
    with contextlib.suppress(HoldfastError):
        # Committed is committed: ranks that do not hear it report a failure and save again.
        ballot.announce(save, name, None)
    return Committed(draft.name, manifest, seal_of(data))


def write_mine(
    store: Store, name: str, draft: CheckpointDraft, sources: Sequence[ImageSource]
) -> list[FileRecord]:
    """This rank's files, durable, as the manifest will list them."""
    records = [store.write(name, source) for source in sources]
    return [replace(record, role=draft.roles.get(record.name, "")) for record in records]


def report(
    records: Sequence[FileRecord],
    agrees_on: Mapping[str, Any],
    claims: RankClaims,
    says: Mapping[str, Any] | None = None,
) -> bytes:
    """What a rank votes with. `says` is for rank 0 and need not be equal on all ranks."""
    files = [{**vars(record), "digests": list(record.digests)} for record in records]
    said = {"agrees_on": dict(agrees_on), "claims": claims.to_json(), "says": dict(says or {})}
    return json.dumps({**said, "files": files}).encode()


def compose(draft: Manifest, reports: Sequence[bytes]) -> Manifest:
    """The manifest over the files of all ranks, if all of them saved the same step of the same state."""
    said = [json.loads(report) for report in reports]
    first = said[0]["agrees_on"]
    for rank, other in enumerate(said):
        for what, value in first.items():
            if other["agrees_on"].get(what) != value:
                raise SaveError(
                    f"rank {rank} saved with {what} {other['agrees_on'].get(what)} and rank 0 with {value}",
                    hint="every rank must track the same objects and call end_step and save_now alike",
                )
    claims = [RankClaims(**each["claims"]) for each in said]
    require_agreement(claims)
    contains = {key: dict(about) for key, about in draft.contains.items()}
    for key, alike in alike_by_object(claims).items():
        contains[key][ALIKE] = alike
    files = tuple(parse_file_record(entry) for each in said for entry in each["files"])
    return replace(draft, files=files, contains=contains)


def words_of(error: BaseException) -> str:
    """What the other ranks are told."""
    return error.message if isinstance(error, HoldfastError) else repr(error)
