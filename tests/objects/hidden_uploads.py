"""The unfinished multipart uploads of a test server's bucket: no listing shows them.

One request, signed by hand (Signature Version 4).
"""

import hashlib
import hmac
import http.client
import time
import urllib.parse
import xml.etree.ElementTree as ET

from holdfast.testing.object_servers import BUCKET, ObjectServer

_EMPTY = hashlib.sha256(b"").hexdigest()


def hidden_uploads(server: ObjectServer, prefix: str) -> list[str]:
    """The keys below `prefix` whose uploads were begun and neither finished nor given up."""
    answer = _get(server, f"/{BUCKET}", "prefix=" + urllib.parse.quote(prefix, safe="-_.~") + "&uploads=")
    found = ET.fromstring(answer)
    keys = [element.text or "" for element in found.iter() if element.tag.rpartition("}")[2] == "Key"]
    return [key for key in keys if key.startswith(prefix)]


def _get(server: ObjectServer, path: str, query: str) -> bytes:
    options = server.options
    at = urllib.parse.urlsplit(options["endpoint"])
    now, region = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), options.get("region", "us-east-1")
    headers = {"host": at.netloc, "x-amz-content-sha256": _EMPTY, "x-amz-date": now}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = "\n".join(["GET", path, query, lines, names, _EMPTY])
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    key = b"AWS4" + options["secret_access_key"].encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = (
        f"Credential={options['access_key_id']}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    connection = http.client.HTTPConnection(at.netloc, timeout=20)
    try:
        connection.request(
            "GET", f"{path}?{query}", headers={**headers, "authorization": f"AWS4-HMAC-SHA256 {credential}"}
        )
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer.read()
    finally:
        connection.close()
