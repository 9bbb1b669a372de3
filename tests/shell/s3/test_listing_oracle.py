"""Walks of any set of keys, by any prefix, delimiter and page size, against a sorted list.

The oracle is the definition: what S3 lists are the keys behind the start that begin with the
prefix, in the order of their UTF-8 bytes, those with the delimiter behind the prefix replaced by
what they have in common, once. A page is the next `max-keys` of these.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st

from hubspoke import wire
from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.hub_link import AiohttpHubLink
from hubspoke.adapters.lmdb_namespace import LmdbNamespace
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.adapters.memory_blocks import MemoryBlockStore
from hubspoke.core.ids import ObjectEntry, ObjectName, Version
from hubspoke.core.namespace import group_end
from hubspoke.core.ranking import RuleRanker
from hubspoke.frontends.hub_protocol import HubProtocolApp
from hubspoke.frontends.s3 import S3App
from hubspoke.frontends.server import HttpServer, address, bind
from hubspoke.hub.service import HubService
from hubspoke.hub.tuning import HubTuning
from hubspoke.spoke.service import SpokeService
from hubspoke.spoke.tuning import SpokeTuning
from tests.shell.s3.conftest import BUCKET, Door, running_door
from tests.store_service import StoreService

Item = tuple[str, str]  # "key" or "prefix", and which
ENTRY = ObjectEntry(Version("v"), 3, "e", 1_700_000_000_000_000_000)
LIST_MAX = 1000
# Few letters, so that keys share beginnings and hold delimiters; among them what XML 1.0 and URLs
# have trouble with, and neighbours of the UTF-16 surrogates, which order differently there.
LETTERS = ["a", "b", "/", "//", "..", ".", "+", "%", "%2F", " ", "&", "<", '"', "\x01", "\x7f",
           "\r", "\n", "\t", "é", "e\u0301", "\ud7ff", "\ue000", "\ufffe", "\uffff", "\U00010000",
           "\U0010ffff", "ab/", "?", "#", "~", "*", "\\"]  # fmt: skip
texts = st.lists(st.sampled_from(LETTERS), max_size=5).map("".join)
keys = texts.filter(bool) | st.sampled_from(
    ["a/" * 512, "b" * 1024, "b" * 1023, "é" * 512, "\U0010ffff" * 256, "a/" + "\uffff" * 340]
)


def oracle(names: list[str], prefix: str, delimiter: str, after: str = "") -> list[Item]:
    items: list[Item] = []
    for key in sorted(names, key=str.encode):
        if not key.startswith(prefix) or key.encode() <= after.encode():
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        item = ("key", key) if cut < 0 else ("prefix", key[: cut + len(delimiter)])
        if items[-1:] != [item]:
            items.append(item)
    return items


def pages_of(items: list[Item], most: int) -> list[list[Item]]:
    return [items[i : i + most] for i in range(0, len(items), most)] or [[]]


def _page(answer: dict[str, Any]) -> list[Item]:
    found = [("key", c["Key"]) for c in answer.get("Contents", [])]
    found += [("prefix", p["Prefix"]) for p in answer.get("CommonPrefixes", [])]
    return sorted(found, key=lambda item: item[1].encode())


def walk_v2(client: Any, **arguments: Any) -> list[list[Item]]:
    pages, more = [], dict[str, Any]()
    while True:
        answer = client.list_objects_v2(Bucket=BUCKET, **arguments, **more)
        pages.append(_page(answer))
        assert answer["KeyCount"] == len(pages[-1])
        assert answer["IsTruncated"] == ("NextContinuationToken" in answer)
        if not answer["IsTruncated"]:
            return pages
        more = {"ContinuationToken": answer["NextContinuationToken"]}


def walk_v1(client: Any, **arguments: Any) -> list[list[Item]]:
    pages, more = [], dict[str, Any]()
    while True:
        answer = client.list_objects(Bucket=BUCKET, **arguments, **more)
        pages.append(_page(answer))
        if not answer["IsTruncated"]:
            return pages
        more = {"Marker": answer["NextMarker"]}


def check(client: Any, names: list[str], prefix: str, delimiter: str, most: int) -> None:
    expected = pages_of(oracle(names, prefix, delimiter), most)
    asked = {"Prefix": prefix, "MaxKeys": most} | ({"Delimiter": delimiter} if delimiter else {})
    assert walk_v2(client, **asked) == expected
    assert walk_v1(client, **asked) == expected


@pytest.fixture(scope="module")
def of_any_keys() -> Any:
    """A door over names that each example replaces."""
    service = StoreService(MemoryObjectStore([BUCKET]))
    with running_door(service, read_only=True) as door:
        yield door


@settings(max_examples=150, deadline=None)
@given(
    names=st.lists(keys, max_size=25, unique=True),
    prefix=texts,
    delimiter=st.sampled_from(["", "/", "/", "//", "a", "ab/", "é", "\uffff", "..", "\U0010ffff"]),
    most=st.sampled_from([1, 2, 3, 5, 1000]),
    after=texts,
)
def test_any_walk_is_the_oracles(
    of_any_keys: Door, names: list[str], prefix: str, delimiter: str, most: int, after: str
) -> None:
    of_any_keys.service.entries = {ObjectName(BUCKET, name): ENTRY for name in names}
    client = of_any_keys.client
    check(client, names, prefix, delimiter, most)
    asked = {"Prefix": prefix, "MaxKeys": most} | ({"Delimiter": delimiter} if delimiter else {})
    if after:
        started = walk_v2(client, StartAfter=after, **asked)
        assert started == pages_of(oracle(names, prefix, delimiter, after), most)


@given(prefix=texts, tail=texts)
def test_no_key_of_a_group_is_behind_its_end(prefix: str, tail: str) -> None:
    key = (prefix + tail).encode()[:1024].decode(errors="ignore")
    if key.startswith(prefix):
        assert key.encode() <= group_end(prefix).encode()
        assert group_end(prefix).startswith(prefix)


@settings(max_examples=100, deadline=None)
@given(names=st.lists(keys, max_size=25, unique=True), prefix=texts, after=texts)
def test_what_a_namespace_lists_is_what_it_scans(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], prefix: str, after: str
) -> None:
    from hubspoke.core.ids import Epoch, LogSequence
    from hubspoke.ports import NamespaceRecord

    async def run() -> None:
        namespace = LmdbNamespace.open(tmp_path_factory.mktemp("ns"), keep_log=False)
        try:
            await namespace.begin_load()
            await namespace.load(
                [NamespaceRecord(ObjectName("b-1", n), ENTRY, LogSequence(1)) for n in names]
            )
            await namespace.adopt(Epoch("e"), LogSequence(1), buckets=["b-1"])
            expected = [k for k in sorted(names) if k.startswith(prefix) and k > after]
            for limit in (1, 3, 1000):
                listed = namespace.listed("b-1", prefix=prefix, after=after, limit=limit)
                assert [row[0] for row in listed] == expected[:limit]
                scanned = namespace.scan("b-1", prefix=prefix, after=after, limit=limit)
                assert [r.listed() for r in scanned] == listed
        finally:
            await namespace.close()

    asyncio.run(run())


@asynccontextmanager
async def doors(folder: Path, names: list[str]) -> AsyncIterator[dict[str, str]]:
    """Addresses of a hub that holds the names, and of a spoke that follows it."""
    store = MemoryObjectStore([BUCKET])
    hub_names = LmdbNamespace.open(folder / "hub", keep_log=True)
    hub = HubService(store, hub_names, BootClock(), HubTuning(stranger_term_s=0.0))
    await hub.start()

    async def empty() -> AsyncIterator[bytes]:
        yield b""

    for name in names:
        await hub.put(ObjectName(BUCKET, name), {}, empty())
    hub_socket, spoke_socket = (bind("127.0.0.1", 0, "--listen") for _ in range(2))
    app = S3App(hub, hub, inner={wire.PREFIX: HubProtocolApp(hub)})
    of_hub = HttpServer(app, hub_socket, "--listen")
    await of_hub.start()
    tuning = SpokeTuning(capacity=64 << 20, spoke_id="s1")
    link = AiohttpHubLink(f"http://{address(hub_socket)}", "s1", tuning.pacing.lanes)
    replica = LmdbNamespace.open(folder / "spoke", keep_log=False)
    spoke = SpokeService(link, replica, MemoryBlockStore(), BootClock(), RuleRanker(), tuning)
    await spoke.start()
    of_spoke = HttpServer(S3App(spoke, None), spoke_socket, "--listen")
    await of_spoke.start()
    try:
        async with asyncio.timeout(20):
            while spoke.ready():  # noqa: ASYNC110 - a state of the product, which has no event
                await asyncio.sleep(0.01)
        yield {"hub": address(hub_socket), "spoke": address(spoke_socket)}
    finally:
        await of_spoke.stop()
        await spoke.close()
        hub.end_feeds()
        await of_hub.stop()
        await hub.close()


async def test_hub_and_spoke_list_hostile_keys_alike(tmp_path: Path) -> None:
    rng = random.Random(11)
    names = {"".join(rng.choices(LETTERS, k=rng.randint(1, 6))) for _ in range(300)}
    names |= {"a", "a/", "a/b", "/lead", "//", "a//b", "..", "a/../b", "b" * 1024, "é" * 512,
              "b" * 500, "b" * 501, "b" * 1000 + "/c", "\U0010ffff" * 256}  # fmt: skip
    held = sorted(names)
    async with doors(tmp_path, held) as where:
        for address_ in where.values():
            client = boto3.session.Session().client(
                "s3", endpoint_url=f"http://{address_}", region_name="us-east-1",
                aws_access_key_id="any", aws_secret_access_key="any",
                config=Config(s3={"addressing_style": "path"}),
            )  # fmt: skip
            await asyncio.to_thread(check, client, held, "", "", 7)
            await asyncio.to_thread(check, client, held, "", "", LIST_MAX)
            for _ in range(25):
                prefix = rng.choice(["", rng.choice(held)[: rng.randint(0, 3)]])
                delimiter = rng.choice(["/", "//", "a", "..", "b", "\uffff"])
                await asyncio.to_thread(check, client, held, prefix, delimiter, rng.randint(1, 40))
            client.close()


def test_tokens_hold_over_a_restart_and_bad_ones_are_refused(service: StoreService) -> None:
    service.entries = {ObjectName(BUCKET, f"k{i}"): ENTRY for i in range(5)}
    with running_door(service, read_only=True) as door:
        first = door.client.list_objects_v2(Bucket=BUCKET, MaxKeys=2)
    with running_door(service, read_only=True) as door:
        token = first["NextContinuationToken"]
        rest = door.client.list_objects_v2(Bucket=BUCKET, ContinuationToken=token)
        assert [c["Key"] for c in rest["Contents"]] == ["k2", "k3", "k4"]
        assert rest["ContinuationToken"] == token
        for bad in ("", "%21", "aw==", "cA==", "eGE=", "a2s", "a%FF", token[:-3]):
            answer = door.request(f"GET /{BUCKET}?list-type=2&continuation-token={bad}")
            assert answer.code in ("InvalidArgument", "InvalidURI"), bad
            assert answer.status == 400


@pytest.mark.parametrize("version", ["list-type=2", ""])
def test_counts_asked_for(service: StoreService, version: str) -> None:
    service.entries = {ObjectName(BUCKET, f"k{i:04}"): ENTRY for i in range(1001)}
    with running_door(service, read_only=True) as door:
        counts = {"0": 0, "1": 1, "1000": 1000, "1001": 1000, "2147483647": 1000, "": 1000}
        for asked, count in counts.items():
            truncated = b"true" if count else b"false"
            body = door.request(f"GET /{BUCKET}?{version}&max-keys={asked}").body
            assert body.count(b"<Contents>") == count, asked
            assert b"<IsTruncated>" + truncated in body, asked
            assert b"<MaxKeys>%d<" % min(int(asked or 1000), 1000) in body
        for bad in ("-1", "x", "1.0", "2147483648", "9" * 30, "%D9%A1"):
            answer = door.request(f"GET /{BUCKET}?{version}&max-keys={bad}")
            assert (answer.status, answer.code) == (400, "InvalidArgument"), bad


def test_owners_are_named_where_s3_names_them(service: StoreService) -> None:
    service.entries = {ObjectName(BUCKET, "k"): ENTRY}
    with running_door(service, read_only=True) as door:
        asked = {"": 1, "list-type=2": 0, "list-type=2&fetch-owner=true": 1,
                 "list-type=2&fetch-owner=false": 0}  # fmt: skip
        for query, owners in asked.items():
            assert door.request(f"GET /{BUCKET}?{query}").body.count(b"<Owner>") == owners, query


def test_names_are_escaped_as_asked_for(service: StoreService) -> None:
    service.entries = {ObjectName(BUCKET, "a b+%&<\x01é/z"): ENTRY}
    with running_door(service, read_only=True) as door:
        plain = door.request(f"GET /{BUCKET}?list-type=2&prefix=a%20b&delimiter=%26").body
        assert b"<Prefix>a b+%&amp;</Prefix>" in plain
        assert b"<Delimiter>&amp;</Delimiter>" in plain
        whole = door.request(f"GET /{BUCKET}").body
        assert "<Key>a b+%&amp;&lt;&#x1;é/z</Key>".encode() in whole
        quoted = door.request(f"GET /{BUCKET}?encoding-type=url&prefix=a%20b&delimiter=%26").body
        assert b"<Prefix>a%20b</Prefix>" in quoted
        assert b"<Prefix>a%20b%2B%25%26</Prefix>" in quoted
        assert b"<Delimiter>%26</Delimiter>" in quoted
        key = door.request(f"GET /{BUCKET}?encoding-type=url").body
        assert b"<Key>a%20b%2B%25%26%3C%01%C3%A9/z</Key>" in key


def test_buckets_come_in_pages(service: StoreService) -> None:
    service.store = MemoryObjectStore(["alpha", "beta", "beta-2", "gamma"])
    with running_door(service, read_only=True) as door:
        client, pages, more = door.client, [], dict[str, Any]()
        while True:
            answer = client.list_buckets(MaxBuckets=3, **more)
            pages.append([b["Name"] for b in answer["Buckets"]])
            if "ContinuationToken" not in answer:
                break
            more = {"ContinuationToken": answer["ContinuationToken"]}
        assert pages == [["alpha", "beta", "beta-2"], ["gamma"]]
        answer = client.list_buckets(Prefix="beta")
        assert [b["Name"] for b in answer["Buckets"]] == ["beta", "beta-2"]
        assert answer["Prefix"] == "beta"
        for bad in ("max-buckets=0", "max-buckets=x", "continuation-token=%21"):
            assert door.request(f"GET /?{bad}").code == "InvalidArgument", bad


def test_other_listings_are_not_pretended(service: StoreService) -> None:
    with running_door(service, read_only=True) as door:
        for query in ("versions", "inventory", "analytics", "versioning"):
            answer = door.request(f"GET /{BUCKET}?{query}")
            assert (answer.status, answer.code) == (501, "NotImplemented"), query
