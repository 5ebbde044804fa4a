"""Compute Engine: preemption of a spot machine, thirty seconds ahead, and termination for maintenance.

The metadata server holds a request until the value changes, so the news arrives at once and without polling.
"""

from __future__ import annotations

from urllib.parse import urlencode

from holdfast.jobs.notices import Notice
from holdfast.jobs.spot_http import MetadataService

ADDRESS = "metadata.google.internal"
_INSTANCE = "/computeMetadata/v1/instance/"
_HEADERS = {"Metadata-Flavor": "Google"}


class GcpNotices:
    """Satisfies NoticeSource."""

    name = "GCP"

    def __init__(
        self, address: str = ADDRESS, *, wait_seconds: float = 20.0, poll_seconds: float = 0.1
    ) -> None:
        # Between two held requests. Short, but not nothing, should the server ever answer at once.
        self.poll_seconds = poll_seconds
        self._wait_seconds = wait_seconds
        self._service = MetadataService(address)
        self._etag = "0"  # never one of theirs: the first request is answered at once

    def look(self) -> Notice | None:
        if self._value("maintenance-event", {}) == "TERMINATE_ON_HOST_MAINTENANCE":
            return Notice(self.name, "the machine will be stopped for maintenance of its host", True)
        held = self._wait_seconds if self._etag != "0" else 0.0
        question = {"wait_for_change": "true", "last_etag": self._etag, "timeout_sec": str(int(held))}
        if self._value("preempted", question, held) == "TRUE":
            return Notice(self.name, "the machine is being preempted", True)
        return None

    def close(self) -> None:
        self._service.close()

    def _value(self, name: str, question: dict[str, str], held: float = 0.0) -> str:
        path = _INSTANCE + name + (f"?{urlencode(question)}" if question else "")
        answer = self._service.ask(path, _HEADERS, waits=held)
        if answer.status != 200 or answer.headers.get("metadata-flavor") != "Google":
            raise ConnectionError(f"no metadata server of Google answered {name}: {answer.status}")
        if question:
            self._etag = answer.headers.get("etag", "0")
        return answer.body.strip()
