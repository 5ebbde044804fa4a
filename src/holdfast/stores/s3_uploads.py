"""Give up unfinished multipart uploads of writers that died: S3 hides them from listings and bills for them.

obstore cannot list them, so these two requests are signed here (Signature Version 4, standard library only).
That needs keys in the environment; with a role or a profile, a lifecycle rule of the bucket must do it. Azure
and Google need nothing: the first forgets uncommitted blocks after a week, the second has rules alike.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import StoreUnavailable

_SECONDS = 20.0
_MOST_PAGES = 50
_MOST_ANSWER_BYTES = 8 << 20
_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class S3Uploads:
    """The unfinished uploads of one bucket, below one prefix."""

    endpoint: str
    bucket: str
    prefix: str
    region: str
    key_id: str
    secret: str
    token: str | None

    @staticmethod
    def find(url: str, options: Mapping[str, Any]) -> S3Uploads | None:
        """None where this is not S3 or nobody gave us keys."""
        parts = urllib.parse.urlsplit(url)

        def said(option: str, *variables: str) -> str | None:
            return options.get(option) or next(filter(None, map(os.environ.get, variables)), None)

        key_id = said("access_key_id", "AWS_ACCESS_KEY_ID")
        secret = said("secret_access_key", "AWS_SECRET_ACCESS_KEY")
        if parts.scheme != "s3" or key_id is None or secret is None:
            return None
        region = said("region", "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = said("endpoint", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        return S3Uploads(
            endpoint=endpoint or f"https://s3.{region}.amazonaws.com",
            bucket=parts.netloc,
            prefix=parts.path.strip("/"),
            region=region,
            key_id=key_id,
            secret=secret,
            token=said("session_token", "AWS_SESSION_TOKEN"),
        )

    def abort(self, prefix: str) -> int:
        """How many were given up below `prefix`."""
        uploads = self.unfinished(prefix)
        for key, upload in uploads:
            self._request("DELETE", f"/{self.bucket}/{key}", {"uploadId": upload}, fine=(200, 204, 404))
        return len(uploads)

    def unfinished(self, prefix: str) -> list[tuple[str, str]]:
        """(key in the bucket, upload id) of each."""
        below = f"{self.prefix}/{prefix}" if self.prefix else prefix
        query = {"uploads": "", "prefix": below}
        found: list[tuple[str, str]] = []
        for _ in range(_MOST_PAGES):
            page = _parse(self._request("GET", f"/{self.bucket}", query, fine=(200,)))
            found += [
                (_text(upload, "Key"), _text(upload, "UploadId"))
                for upload in page.iter()
                if _tag(upload) == "Upload"
            ]
            if _text(page, "IsTruncated") != "true":
                break
            query |= {
                "key-marker": _text(page, "NextKeyMarker"),
                "upload-id-marker": _text(page, "NextUploadIdMarker"),
            }
        # Not every server filters: one upload too many would be somebody's work.
        return [(key, upload) for key, upload in found if key.startswith(below) and upload]

    def _request(self, method: str, path: str, query: Mapping[str, str], *, fine: tuple[int, ...]) -> bytes:
        at = urllib.parse.urlsplit(self.endpoint)
        kind = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
        connection = kind(at.netloc, timeout=_SECONDS)
        path = urllib.parse.quote(path)
        text = "&".join(f"{_quoted(k)}={_quoted(v)}" for k, v in sorted(query.items()))
        try:
            connection.request(method, f"{path}?{text}", headers=self._signed(method, path, text, at.netloc))
            answer = connection.getresponse()
            body = answer.read(_MOST_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailable(f"cannot ask {self.endpoint} for unfinished uploads: {error}") from error
        finally:
            connection.close()
        if answer.status not in fine:
            raise StoreUnavailable(
                f"{self.endpoint} answers {answer.status} when asked for unfinished uploads",
                hint="a lifecycle rule of the bucket can remove them instead",
            )
        return body

    def _signed(self, method: str, path: str, query: str, host: str) -> dict[str, str]:
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = {"host": host, "x-amz-content-sha256": _EMPTY, "x-amz-date": now}
        if self.token is not None:
            headers["x-amz-security-token"] = self.token
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        request = "\n".join([method, path, query, lines, names, _EMPTY])
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        key = b"AWS4" + self.secret.encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}".encode(), "sha256").hex()
        credential = f"Credential={self.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**headers, "authorization": f"AWS4-HMAC-SHA256 {credential}"}


def _parse(body: bytes) -> ET.Element:
    try:
        return ET.fromstring(body)
    except ET.ParseError as error:
        raise StoreUnavailable(f"the list of unfinished uploads cannot be read: {error}") from error


def _tag(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(element: ET.Element, name: str) -> str:
    return next((child.text or "" for child in element if _tag(child) == name), "")


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.~")
