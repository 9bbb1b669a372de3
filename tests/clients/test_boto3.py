"""boto3 with its defaults: managed multipart upload at the hub, download at the spoke."""

import random
import textwrap
from pathlib import Path

from tests.clients.conftest import Ends, Run
from tests.clients.environments import environment

SCRIPT = textwrap.dedent("""
    import sys
    import boto3

    hub, spoke, source, target, key = sys.argv[1:]
    boto3.client("s3", endpoint_url=hub).upload_file(source, "data", key)
    reader = boto3.client("s3", endpoint_url=spoke)
    reader.download_file("data", key, target)
    head = reader.head_object(Bucket="data", Key=key)
    part = reader.get_object(Bucket="data", Key=key, Range="bytes=1000-4999", IfMatch=head["ETag"])
    print(head["ContentLength"], len(part["Body"].read()))
    try:
        reader.put_object(Bucket="data", Key="no", Body=b"")
    except reader.exceptions.ClientError as e:
        print(e.response["Error"]["Code"])
""")


def test_upload_file_of_20_mib_and_download_file(ends: Ends, run: Run, tmp_path: Path) -> None:
    python = environment("boto3", "boto3") / "python"
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(random.Random(20).randbytes(20 << 20))
    key = "boto3/twenty ü+%.bin"
    out = run(python, "-c", SCRIPT, ends.hub, ends.spoke, source, target, key)
    assert target.read_bytes() == source.read_bytes()
    assert out.split() == [str(20 << 20), "4000", "NotImplemented"]
