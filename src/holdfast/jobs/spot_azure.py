"""Azure: scheduled events, among them the eviction of a spot machine, at least thirty seconds ahead.

The service lists events of every machine in a scale set; only those that name this machine count.
"""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime

from holdfast.clock import Clock, SystemClock
from holdfast.jobs.notices import Notice
from holdfast.jobs.spot_http import MetadataService

ADDRESS = "169.254.169.254"
_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_HEADERS = {"Metadata": "true"}
# "Freeze" pauses the machine for seconds and loses nothing.
_ENDS_THE_PROCESS = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})
# The first request switches the service on for this machine, and is answered up to two minutes later.
_FIRST_ANSWER_SECONDS = 125.0
# Hardware that is about to fail is announced days ahead: worth a save, and no reason to stop yet.
_STOP_SECONDS_AHEAD = 600.0


class AzureNotices:
    """Satisfies NoticeSource."""

    name = "Azure"

    def __init__(
        self, address: str = ADDRESS, *, poll_seconds: float = 5.0, clock: Clock | None = None
    ) -> None:
        self.poll_seconds = poll_seconds
        self._clock = clock or SystemClock()
        self._first_wait = _FIRST_ANSWER_SECONDS
        self._service = MetadataService(address)
        self._machine: str | None = None

    def look(self) -> Notice | None:
        events = json.loads(self._read(_EVENTS, self._first_wait)).get("Events", [])
        self._first_wait = 0.0
        mine = [event for event in events if self._concerns_me(event)]
        if not mine:
            return None
        # Blank once it has started.
        when, event = min(((_seconds(str(one.get("NotBefore") or "")), one) for one in mine), key=_soonest)
        what = f"{event['EventType']} of this machine, not before {event.get('NotBefore') or 'now'}"
        stops = when is None or when - self._clock.wall() < _STOP_SECONDS_AHEAD
        return Notice(self.name, what, stops, when)

    def close(self) -> None:
        self._service.close()

    def _concerns_me(self, event: dict[str, object]) -> bool:
        if event.get("EventType") not in _ENDS_THE_PROCESS or event.get("EventStatus") == "Completed":
            return False
        if self._machine is None:
            self._machine = self._read(_NAME).strip()
        resources = event.get("Resources")
        return isinstance(resources, list) and self._machine in resources

    def _read(self, path: str, waits: float = 0.0) -> str:
        answer = self._service.ask(path, _HEADERS, waits=waits)
        if answer.status != 200:
            raise ConnectionError(f"the metadata service answered {answer.status}")
        return answer.body


def _soonest(timed: tuple[float | None, dict[str, object]]) -> float:
    return timed[0] or 0.0


def _seconds(text: str) -> float | None:
    """ "Mon, 19 Sep 2016 18:29:47 GMT"; empty once the event has started."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
