"""Which cloud this machine belongs to, told by its firmware and without a single packet, and whom to ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.errors import SetupError
from holdfast.jobs.notices import NoticePoller, NoticeSource
from holdfast.jobs.spot_aws import AwsNotices
from holdfast.jobs.spot_azure import AzureNotices
from holdfast.jobs.spot_gcp import GcpNotices

# "auto", "off", "aws", "gcp" or "azure", also as NAME@host:port for a proxy of the metadata service.
VARIABLE = "HOLDFAST_SPOT"
Spot = str | NoticeSource | None
_PROVIDERS: dict[str, Callable[..., NoticeSource]] = {
    "aws": AwsNotices, "gcp": GcpNotices, "azure": AzureNotices,
}  # fmt: skip
# Microsoft's mark on every machine of Azure; "Microsoft Corporation" alone is also any Hyper-V.
_AZURE_CHASSIS = "7783-7084-3265-9085-8269-3286-77"


def spot_poller(spot: Spot, environ: Mapping[str, str]) -> NoticePoller | None:
    """A poller that is not started yet; None where nobody would answer. `spot` of the user comes first."""
    if spot is not None and not isinstance(spot, str):
        return NoticePoller(spot, expected=True)
    word = (spot or environ.get(VARIABLE) or "auto").strip()
    if word == "off":
        return None
    if word == "auto":
        cloud = cloud_of_this_machine()
        return None if cloud is None else NoticePoller(_PROVIDERS[cloud](), expected=False)
    name, _, address = word.partition("@")
    if name not in _PROVIDERS:
        raise SetupError(
            f"unknown provider of spot machines {word!r}", hint="use auto, off, aws, gcp or azure"
        )
    source = _PROVIDERS[name](address) if address else _PROVIDERS[name]()
    return NoticePoller(source, expected=True)


def cloud_of_this_machine(firmware: Path = Path("/sys/class/dmi/id")) -> str | None:
    vendor, product = _read(firmware / "sys_vendor"), _read(firmware / "product_name")
    if vendor == "Amazon EC2":
        return "aws"
    if product == "Google Compute Engine":
        return "gcp"
    return "azure" if _read(firmware / "chassis_asset_tag") == _AZURE_CHASSIS else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
