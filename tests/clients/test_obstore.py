"""obstore (the Rust object_store): put at the hub, list, get and many ranges at the spoke."""

import random
import textwrap
from pathlib import Path

from tests.clients.conftest import Ends, Run
from tests.clients.environments import environment

SCRIPT = textwrap.dedent("""
    import sys
    import obstore
    from obstore.store import S3Store

    hub, spoke, source = sys.argv[1:]
    content = open(source, "rb").read()

    def connect(url):
        return S3Store(
            "data", endpoint=url, access_key_id="any", secret_access_key="any",
            region="us-east-1", client_options={"allow_http": True},
            virtual_hosted_style_request=False,
        )

    writer, reader = connect(hub), connect(spoke)
    obstore.put(writer, "obstore/a/object.bin", content, chunk_size=5 << 20)  # as multipart
    obstore.put(writer, "obstore/small", b"small")
    found = [entry for batch in obstore.list(reader, "obstore") for entry in batch]
    print(sorted((entry["path"], entry["size"]) for entry in found))
    assert bytes(obstore.get(reader, "obstore/a/object.bin").bytes()) == content
    head = obstore.head(reader, "obstore/a/object.bin")
    assert head["size"] == len(content)
    starts = [0, 4095, 1 << 20, 9_999_999]
    ends = [1, 4097, (1 << 20) + 262_144, 10_000_000]
    parts = obstore.get_ranges(reader, "obstore/a/object.bin", starts=starts, ends=ends)
    for first, last, part in zip(starts, ends, parts):
        assert bytes(part) == content[first:last], first
    suffix = obstore.get(reader, "obstore/a/object.bin", options={"range": {"suffix": 100}})
    assert bytes(suffix.bytes()) == content[-100:]
    same = obstore.get(reader, "obstore/small", options={"if_match": obstore.head(
        reader, "obstore/small")["e_tag"]})
    assert bytes(same.bytes()) == b"small"
    try:
        obstore.put(reader, "obstore/no", b"x")
    except Exception as e:
        print("NotImplemented" in str(e) or "501" in str(e), e)
""")


def test_put_list_get_and_get_ranges(ends: Ends, run: Run, tmp_path: Path) -> None:
    python = environment("obstore", "obstore") / "python"
    source = tmp_path / "source"
    source.write_bytes(random.Random(12).randbytes(12_345_678))
    lines = run(python, "-c", SCRIPT, ends.hub, ends.spoke, source).splitlines()
    assert lines[0] == "[('obstore/a/object.bin', 12345678), ('obstore/small', 5)]"
    assert lines[1].startswith("True"), lines[1]
