"""Ranks on nodes of their own copy into a bucket, and everything else is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from holdfast.testing.object_servers import BUCKET, ObjectServer

SCRIPT = Path(__file__).parents[1] / "many_ranks" / "outward_at_work.py"


def test_fresh_nodes_go_on_from_the_bucket_alone(weed: ObjectServer, prefix: str, tmp_path: Path) -> None:
    bucket = f"s3://{BUCKET}/{prefix}"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "bucket", str(tmp_path), bucket],
        env={**os.environ, **weed.environment}, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    errors = "\n".join(path.read_text() for path in sorted(tmp_path.rglob("error-*.txt")))
    assert done.returncode == 0, done.stderr[-2000:] + errors
    answer = json.loads(done.stdout.splitlines()[-1])
    for saved, found in zip(answer["saved"], answer["found"], strict=True):
        assert found is not None, errors
        assert found["step"] == 2, "every second one goes to the bucket"
        assert found["start"] == saved
        read = {tier for tier, count in found["read"].items() if count}
        assert read == {bucket}
