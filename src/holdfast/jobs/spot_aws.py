"""EC2: the two-minute notice before a spot instance is taken, and the earlier advice to rebalance.

Through the instance metadata service, version 2 (a token first). Amazon advises to look every five seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from holdfast.jobs.notices import Notice
from holdfast.jobs.spot_http import Answer, MetadataService

ADDRESS = "169.254.169.254"
_TOKEN = "/latest/api/token"
_ACTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
_TOKEN_SECONDS = "21600"


class AwsNotices:
    """Satisfies NoticeSource."""

    name = "AWS"

    def __init__(self, address: str = ADDRESS, *, poll_seconds: float = 5.0) -> None:
        self.poll_seconds = poll_seconds
        self._service = MetadataService(address)
        self._token: str | None = None

    def look(self) -> Notice | None:
        action = self._read(_ACTION)
        if action is not None:
            what = str(action.get("action", "interrupt"))
            at = _seconds(action.get("time"))
            return Notice(self.name, f"the spot instance gets {what!r} at {action.get('time')}", True, at)
        advice = self._read(_REBALANCE)
        if advice is not None:
            return Notice(self.name, f"advises to rebalance since {advice.get('noticeTime')}", False)
        return None

    def close(self) -> None:
        self._service.close()

    def _read(self, path: str) -> Mapping[str, object] | None:
        answer = self._with_token(path)
        if answer.status == 401:  # the token has run out
            self._token = None
            answer = self._with_token(path)
        if answer.status == 404:  # nothing is announced
            return None
        if answer.status != 200:
            raise ConnectionError(f"the metadata service answered {answer.status} to {path}")
        found = json.loads(answer.body)
        if not isinstance(found, dict):
            raise ValueError(f"unexpected answer to {path}: {answer.body[:80]!r}")
        return found

    def _with_token(self, path: str) -> Answer:
        if self._token is None:
            lasts = {"X-aws-ec2-metadata-token-ttl-seconds": _TOKEN_SECONDS}
            answer = self._service.ask(_TOKEN, lasts, method="PUT")
            if answer.status != 200:
                raise ConnectionError(f"the metadata service gave no token: {answer.status}")
            self._token = answer.body.strip()
        return self._service.ask(path, {"X-aws-ec2-metadata-token": self._token})


def _seconds(text: object) -> float | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
