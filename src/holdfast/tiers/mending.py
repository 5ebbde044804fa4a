"""Put right bytes in the place of damaged ones. The one exception to "committed files never change".

A damaged file is not what was committed. Its replacement is written beside it, made durable and compared with
the manifest's digests; only then does the damaged one go. At no moment is there less than there was before.
"""

from __future__ import annotations

import threading

from holdfast.errors import HoldfastError
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import Store
from holdfast.tiers.bandwidth import Bandwidth
from holdfast.tiers.copying import LadderSource
from holdfast.tiers.ladder import Ladder


def mend_file(ladder: Ladder, store: Store, name: str, record: FileRecord) -> None:
    """Replace one file by the good chunks of all tiers, this one's own among them. Raises and changes nothing
    if any chunk is good nowhere."""
    file = ladder.open(name, record.name)
    try:
        source = LadderSource(record, file, Bandwidth(None), threading.Event())
        store.write(name, source, expect=record, replace=True)
    finally:
        file.close()


def manifest_problems(store: Store, name: str, right: bytes) -> list[str]:
    """What is wrong with a tier's own commit record, both copies where there are two."""
    try:
        found = store.manifest(name)
    except HoldfastError as error:
        return [error.message]
    if found != right:
        return [f"{store.where} holds another checkpoint of the name {name}"]
    return store.damaged_records(name, right)
