"""The metadata services of three clouds, spoken by a server on this machine."""

import json
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from holdfast.errors import SetupError
from holdfast.jobs.notices import Notice, NoticePoller
from holdfast.jobs.spot_aws import AwsNotices
from holdfast.jobs.spot_azure import AzureNotices
from holdfast.jobs.spot_gcp import GcpNotices
from holdfast.jobs.spot_machine import cloud_of_this_machine, spot_poller
from holdfast.testing.fake_clock import FakeClock

LIMIT = 60


class Cloud(ThreadingHTTPServer):
    """Knows the paths of all three services. Tests set what it announces."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Service)
        self.tokens: set[str] = set()
        self.action: dict[str, str] | None = None
        self.rebalance: dict[str, str] | None = None
        self.events: list[dict[str, object]] = []
        self.preempted = "FALSE"
        self.maintenance = "NONE"
        self.changed = threading.Condition()
        self.held = threading.Event()
        self.asked: list[str] = []
        # Azure's service, before anybody has asked.
        self.sleeping = 0.0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def preempt(self) -> None:
        with self.changed:
            self.preempted = "TRUE"
            self.changed.notify_all()


class Service(BaseHTTPRequestHandler):
    server: Cloud

    def do_PUT(self) -> None:
        if self.path != "/latest/api/token" or "X-aws-ec2-metadata-token-ttl-seconds" not in self.headers:
            return self.answer(400, "")
        token = f"token-{len(self.server.asked)}"
        self.server.tokens.add(token)
        self.server.asked.append("token")
        return self.answer(200, token)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.server.asked.append(url.path)
        if url.path.startswith("/latest/meta-data/"):
            return self.amazon(url.path)
        if url.path.startswith("/computeMetadata/v1/instance/"):
            return self.google(url.path.rpartition("/")[2], parse_qs(url.query))
        if url.path.startswith("/metadata/"):
            return self.azure(url.path, parse_qs(url.query))
        return self.answer(404, "")

    def amazon(self, path: str) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") not in self.server.tokens:
            return self.answer(401, "")
        found = {
            "/latest/meta-data/spot/instance-action": self.server.action,
            "/latest/meta-data/events/recommendations/rebalance": self.server.rebalance,
        }.get(path)
        return self.answer(404, "") if found is None else self.answer(200, json.dumps(found))

    def google(self, name: str, question: dict[str, list[str]]) -> None:
        if self.headers.get("Metadata-Flavor") != "Google":
            return self.answer(403, "")
        if name == "maintenance-event":
            return self.answer(200, self.server.maintenance, {"Metadata-Flavor": "Google"})
        with self.server.changed:
            if question["last_etag"] == ["etag-" + self.server.preempted]:
                self.server.held.set()
                self.server.changed.wait(float(question["timeout_sec"][0]))
            value = self.server.preempted
        return self.answer(200, value, {"Metadata-Flavor": "Google", "ETag": f"etag-{value}"})

    def azure(self, path: str, question: dict[str, list[str]]) -> None:
        if self.headers.get("Metadata") != "true" or "api-version" not in question:
            return self.answer(400, "")
        if path == "/metadata/instance/compute/name":
            return self.answer(200, "vm_0")
        asleep, self.server.sleeping = self.server.sleeping, 0.0
        time.sleep(asleep)
        return self.answer(200, json.dumps({"DocumentIncarnation": 1, "Events": self.server.events}))

    def answer(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
        try:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())
        except OSError:
            pass  # the client has left, which is one of the things tested

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    server = Cloud()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(LIMIT)


def azure_event(
    kind: str, machine: str = "vm_0", status: str = "Scheduled", when: str = "Mon, 19 Sep 2016 18:29:47 GMT"
) -> dict[str, object]:
    return {
        "EventId": "A1", "EventStatus": status, "EventType": kind, "ResourceType": "VirtualMachine",
        "Resources": [machine], "NotBefore": when,
    }  # fmt: skip


def test_amazon_announces_the_end(cloud: Cloud) -> None:
    source = AwsNotices(cloud.address)
    assert source.look() is None
    cloud.action = {"action": "terminate", "time": "2026-11-15T08:22:00Z"}
    notice = source.look()
    assert notice is not None
    assert notice.stops
    assert notice.at == 1794730920
    assert "terminate" in notice.what


def test_amazon_advises_to_rebalance_which_does_not_stop(cloud: Cloud) -> None:
    cloud.rebalance = {"noticeTime": "2026-11-15T08:22:00Z"}
    notice = AwsNotices(cloud.address).look()
    assert notice is not None
    assert not notice.stops


def test_an_expired_token_is_renewed(cloud: Cloud) -> None:
    source = AwsNotices(cloud.address)
    source.look()
    cloud.tokens.clear()
    assert source.look() is None
    assert cloud.asked.count("token") == 2


def test_google_answers_a_held_request_when_the_machine_is_preempted(cloud: Cloud) -> None:
    poller = NoticePoller(GcpNotices(cloud.address, wait_seconds=LIMIT), expected=True)
    poller.start()
    assert cloud.held.wait(LIMIT), "no request was held"
    cloud.preempt()
    arrived = threading.Event()
    for _ in range(6000):
        if poller.newest is not None:
            break
        arrived.wait(0.01)
    assert poller.newest == Notice("GCP", "the machine is being preempted", True)
    poller.close()


def test_closing_breaks_off_a_held_request(cloud: Cloud) -> None:
    """The fixture that looks for threads left behind would notice."""
    poller = NoticePoller(GcpNotices(cloud.address, wait_seconds=3600), expected=True)
    poller.start()
    assert cloud.held.wait(LIMIT)
    poller.close()
    assert not poller._thread.is_alive()


def test_google_stops_machines_for_maintenance(cloud: Cloud) -> None:
    cloud.maintenance = "TERMINATE_ON_HOST_MAINTENANCE"
    notice = GcpNotices(cloud.address).look()
    assert notice is not None
    assert notice.stops


def test_azure_preempts_this_machine_and_not_another(cloud: Cloud) -> None:
    source = AzureNotices(cloud.address)
    assert source.look() is None
    cloud.events = [azure_event("Preempt", "vm_1"), azure_event("Freeze")]
    assert source.look() is None
    cloud.events.append(azure_event("Preempt"))
    notice = source.look()
    assert notice is not None
    assert notice.stops
    assert notice.at == 1474309787
    cloud.events = [azure_event("Reboot", status="Completed")]
    assert source.look() is None


def test_azure_announces_days_ahead_what_stops_only_when_it_comes(cloud: Cloud) -> None:
    clock = FakeClock()
    source = AzureNotices(cloud.address, clock=clock)

    def announced(ahead: float) -> str:
        return formatdate(clock.wall() + ahead, usegmt=True)

    cloud.events = [azure_event("Redeploy", when=announced(5 * 86400))]
    far = source.look()
    assert far is not None
    assert not far.stops
    clock.advance(5 * 86400 - 300)
    near = source.look()
    assert near is not None
    assert near.stops
    cloud.events = [azure_event("Redeploy", when=announced(5 * 86400)), azure_event("Preempt", when="")]
    now = source.look()
    assert now is not None
    assert now.stops
    assert now.at is None


def test_azure_may_take_its_time_for_the_first_answer(cloud: Cloud) -> None:
    source = AzureNotices(cloud.address)
    source._service._timeout = 0.2
    cloud.sleeping = 0.6
    assert source.look() is None
    cloud.sleeping = 0.6
    with pytest.raises(OSError, match="timed out"):
        source.look()


@pytest.mark.parametrize("source", [AwsNotices, GcpNotices, AzureNotices])
def test_a_machine_without_the_service_is_left_alone_after_a_few_tries(
    source: type, caplog: pytest.LogCaptureFixture
) -> None:
    closed = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    address = f"127.0.0.1:{closed.server_address[1]}"
    closed.server_close()
    poller = NoticePoller(source(address, poll_seconds=0.001), expected=True)
    poller.start()
    poller._thread.join(LIMIT)
    assert not poller._thread.is_alive()
    assert poller.newest is None
    assert "no answer" in caplog.text


def test_what_was_announced_stays_announced() -> None:
    class Wavering:
        name, poll_seconds = "test", 0.0

        def __init__(self) -> None:
            self.answers = iter([None, Notice("test", "going", True), None, Notice("test", "maybe", False)])
            self.done = threading.Event()

        def look(self) -> Notice | None:
            for answer in self.answers:
                return answer
            self.done.set()
            self.done.wait(0.01)
            return None

        def close(self) -> None:
            pass

    source = Wavering()
    poller = NoticePoller(source, expected=True)
    poller.start()
    assert source.done.wait(LIMIT)
    assert poller.newest == Notice("test", "going", True)
    poller.close()


@pytest.mark.parametrize(
    ("files", "cloud_name"),
    [
        ({"sys_vendor": "Amazon EC2\n"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine\n"}, "gcp"),
        (
            {
                "sys_vendor": "Microsoft Corporation",
                "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77\n",
            },
            "azure",
        ),
        ({"sys_vendor": "Microsoft Corporation"}, None),
        ({"sys_vendor": "QEMU"}, None),
        ({}, None),
    ],
)
def test_the_firmware_tells_whose_machine_it_is(
    tmp_path: Path, files: dict[str, str], cloud_name: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cloud_of_this_machine(tmp_path) == cloud_name


def test_nobody_is_asked_unless_the_machine_or_the_user_says_so() -> None:
    assert spot_poller("off", {"HOLDFAST_SPOT": "aws"}) is None
    assert spot_poller(None, {"HOLDFAST_SPOT": "off"}) is None
    assert spot_poller(None, {"HOLDFAST_SPOT": "aws"}) is not None
    assert spot_poller("gcp@127.0.0.1:1", {}) is not None
    with pytest.raises(SetupError, match="unknown provider"):
        spot_poller("ibm", {})
