"""What doctor makes of good facts and of bad ones."""

from dataclasses import replace

import pytest

from hubspoke.doctor.judge import cache, host, mount, names, network
from hubspoke.doctor.judge.cache import FolderFacts, Holes, Speed
from hubspoke.doctor.judge.finding import Finding, Severity, size, worst
from hubspoke.doctor.judge.host import ClockFacts, LimitFacts
from hubspoke.doctor.judge.mount import FuseFacts, Init, KernelFacts, MountPoint
from hubspoke.doctor.judge.names import NameFacts
from hubspoke.doctor.judge.network import HubFacts, TcpFacts

OK, NOTE, WARNING, PROBLEM = Severity

INIT = Init(7, 45, mount.PASSTHROUGH | mount.RESEND)
FUSE = FuseFacts(
    device_error=None, registered=True, fusermount="/usr/bin/fusermount3", allow_other=True,
    admin=True, init=INIT, init_error=None,
)  # fmt: skip
UNPRIVILEGED = replace(FUSE, admin=False, init=None, init_error="not root")
KERNEL = KernelFacts((6, 18), 256)
FOLDER = FolderFacts(
    "/nvme/cache", device="nvme0n1", free=1 << 40, files_free=10**6,
    holes=Holes(seen=True, punched=True), speed=Speed(1e9, 2e9, 128 << 20),
)  # fmt: skip
STATE = replace(FOLDER, path="/state", device="sda")
TCP = TcpFacts(32 << 20, 16 << 20, "bbr", ("reno", "bbr"), False)
HUB = HubFacts("http://hub:7070", None, 0.06, 1, "us-east-2")
MOUNT = MountPoint("/mnt", None, False, True, None, 0)


def only(findings: list[Finding], severity: Severity) -> Finding:
    """The one finding that is worse than ok, which is that bad and has a remedy or is a note."""
    bad = [f for f in findings if f.severity is not OK]
    assert len(bad) == 1, bad
    assert bad[0].severity is severity, bad[0]
    assert bad[0].remedy or severity is NOTE
    return bad[0]


def good(findings: list[Finding]) -> None:
    assert findings
    assert {f.severity for f in findings} == {OK}, findings
    assert not any(f.remedy for f in findings)


def test_good_host_has_nothing_but_ok() -> None:
    good(mount.fuse(FUSE))
    good(mount.kernel(KERNEL, FUSE))
    good(mount.mount_point(MOUNT, admin=True))
    good(cache.cache_folder(FOLDER))
    good(cache.together([FOLDER], STATE))
    good(network.hub(HUB, 1))
    good(network.tcp(TCP, 0.06, hub_here=True, spoke_here=True))
    good(host.limits(LimitFacts(1 << 20, 65536, 10)))
    good(host.clock(ClockFacts(True, True, 0.001), signs=True))
    good(names.in_store(NameFacts("/data", 5)))
    good(names.on_mount(NameFacts("http://hub:7070", 5)))


@pytest.mark.parametrize(
    ("facts", "severity", "said", "remedy"),
    [
        (replace(FUSE, device_error="No such file"), PROBLEM, "No such file", "modprobe fuse"),
        (replace(FUSE, registered=False), PROBLEM, "no FUSE file system", "modprobe fuse"),
        (
            replace(FUSE, init=None, init_error="Operation not permitted"),
            PROBLEM,
            "not permitted",
            "apparmor=unconfined",
        ),
        (replace(UNPRIVILEGED, fusermount=None), PROBLEM, "no fusermount3", "install fuse3"),
        (replace(UNPRIVILEGED, allow_other=False), NOTE, "only the user", "/etc/fuse.conf"),
    ],
)
def test_fuse(facts: FuseFacts, severity: Severity, said: str, remedy: str) -> None:
    found = only(mount.fuse(facts), severity)
    assert said in found.found
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("kernel", "fuse", "severity", "said"),
    [
        (KernelFacts((6, 1), None), UNPRIVILEGED, WARNING, "no FUSE passthrough"),
        (KERNEL, replace(FUSE, init=Init(7, 45, mount.RESEND)), WARNING, "no FUSE passthrough"),
        (KERNEL, UNPRIVILEGED, WARNING, "needs CAP_SYS_ADMIN"),
        (KERNEL, replace(FUSE, init=Init(7, 40, mount.PASSTHROUGH)), NOTE, "resends no requests"),
        (KERNEL, replace(FUSE, init=replace(INIT, minor=30)), PROBLEM, "FUSE 7.30"),
        (KernelFacts((6, 18), 32), FUSE, WARNING, "128 KiB"),
    ],
)
def test_kernel(kernel: KernelFacts, fuse: FuseFacts, severity: Severity, said: str) -> None:
    assert said in only(mount.kernel(kernel, fuse), severity).found


@pytest.mark.parametrize(
    ("facts", "severity", "said", "remedy"),
    [
        (replace(MOUNT, error="No such file"), PROBLEM, "No such file", "mkdir -p /mnt"),
        (replace(MOUNT, error="x", gone=True), PROBLEM, "server is gone", "fusermount3 -uz /mnt"),
        (replace(MOUNT, is_folder=False), PROBLEM, "not a folder", "empty folder"),
        (replace(MOUNT, entries=1), NOTE, "hidden", "empty folder"),
        (replace(MOUNT, mounted="ext4"), WARNING, "mount of ext4", "empty folder"),
        (
            replace(MOUNT, mounted="fuse.hubspoke", read_ahead_kib=128, bdi="/sys/x"),
            WARNING,
            "128 KiB ahead",
            "echo 256 > /sys/x",
        ),
        (replace(MOUNT, mounted="fuse"), NOTE, "read-ahead not checked", ""),
    ],
)
def test_mount_point(facts: MountPoint, severity: Severity, said: str, remedy: str) -> None:
    found = only(mount.mount_point(facts, admin=True), severity)
    assert said in found.found
    assert remedy in found.remedy


def test_read_ahead_of_a_mount_that_is_as_wanted() -> None:
    mounted = replace(MOUNT, mounted="fuse", read_ahead_kib=1024, bdi="/sys/x")
    for kib in (64, 256, 1024):  # as the file that was opened last wanted it
        good(mount.mount_point(replace(mounted, read_ahead_kib=kib), admin=False))
    small = replace(mounted, read_ahead_kib=128)
    assert only(mount.mount_point(small, admin=False), WARNING).remedy.startswith("as root: ")


@pytest.mark.parametrize(
    ("facts", "severity", "said"),
    [
        (replace(FOLDER, error="Permission denied"), PROBLEM, "Permission denied"),
        (replace(FOLDER, kind="memory", file_system="tmpfs"), WARNING, "takes memory"),
        (replace(FOLDER, kind="overlay", file_system="overlayfs"), WARNING, "container"),
        (replace(FOLDER, kind="network", file_system="NFS"), PROBLEM, "crosses a network"),
        (replace(FOLDER, kind="unknown"), NOTE, "nobody has tried"),
        (replace(FOLDER, holes=None), PROBLEM, "cannot be punched"),
        (replace(FOLDER, holes=Holes(True, True, "not supported")), PROBLEM, "not supported"),
        (replace(FOLDER, holes=Holes(True, False)), PROBLEM, "give their blocks back"),
        (replace(FOLDER, holes=Holes(False, True)), PROBLEM, "not seen by SEEK_HOLE"),
        (replace(FOLDER, free=5 << 30), WARNING, "5 GiB free"),
        (replace(FOLDER, free=5 << 20), PROBLEM, "5 MiB free"),
        (replace(FOLDER, files_free=12), WARNING, "12 inodes"),
        (replace(FOLDER, speed=Speed(1e9, 1e8, 1)), WARNING, "reads 100 MB/s"),
        (replace(FOLDER, speed=Speed(1e8, 2e9, 1)), WARNING, "writes 100 MB/s"),
        (replace(FOLDER, speed=None, speed_error="direct I/O: no"), NOTE, "not measured"),
        (replace(FOLDER, holder="process 77"), NOTE, "process 77"),
    ],
)
def test_cache_folder(facts: FolderFacts, severity: Severity, said: str) -> None:
    assert said in only(cache.cache_folder(facts), severity).found


def test_file_system_that_counts_no_inodes_has_enough() -> None:
    good(cache.cache_folder(replace(FOLDER, files_free=None)))


def test_folders_together() -> None:
    twin = replace(FOLDER, path="/nvme/other")
    assert "one drive" in only(cache.together([FOLDER, twin], None), NOTE).found
    assert "SIGBUS" in only(cache.together([FOLDER], FOLDER), NOTE).found
    nfs = replace(STATE, kind="network", file_system="NFS")
    assert "LMDB" in only(cache.together([FOLDER], nfs), PROBLEM).found
    broken = replace(STATE, error="Read-only file system")
    assert "Read-only" in only(cache.together([FOLDER], broken), PROBLEM).found
    full = replace(STATE, free=1)
    assert "1 B free" in only(cache.together([FOLDER], full), WARNING).found
    assert cache.together([replace(FOLDER, error="x"), FOLDER], None) == []


@pytest.mark.parametrize(
    ("facts", "severity", "said"),
    [
        (HubFacts("http://h:1", "refused"), PROBLEM, "cannot be reached: refused"),
        (HubFacts("http://h:1", "status 404", 0.001), PROBLEM, "not as a hub: status 404"),
        (HubFacts("http://h:1", None, 0.001), PROBLEM, "not as a hub: no feed"),
        (replace(HUB, protocol=3), PROBLEM, "this host speaks 1"),
        (replace(HUB, protocol=2), NOTE, "while you upgrade"),
    ],
)
def test_hub(facts: HubFacts, severity: Severity, said: str) -> None:
    assert said in only(network.hub(facts, 1), severity).found


@pytest.mark.parametrize(
    ("facts", "severity", "said", "remedy"),
    [
        (replace(TCP, wmem_max=1 << 20), WARNING, "280 MB/s", "tcp_wmem='4096 16384 8388608'"),
        (replace(TCP, wmem_max=None), NOTE, "tcp_wmem not checked", ""),
        (replace(TCP, congestion="cubic"), WARNING, "cubic", "sysctl -w net.ipv4.tcp_congestion"),
        (replace(TCP, congestion="cubic", available=("cubic",)), WARNING, "", "modprobe tcp_bbr"),
        (replace(TCP, congestion=None), NOTE, "not checked", ""),
        (replace(TCP, slow_start_after_idle=True), WARNING, "0.55 s", "after_idle=0"),
        (replace(TCP, slow_start_after_idle=None), NOTE, "not checked", ""),
    ],
)
def test_tcp_of_a_hub(facts: TcpFacts, severity: Severity, said: str, remedy: str) -> None:
    found = only(network.tcp(facts, 0.06, hub_here=True, spoke_here=False), severity)
    assert said in found.found
    assert remedy in found.remedy


def test_tcp_of_a_spoke_is_judged_by_its_receive_buffer_alone() -> None:
    poor = replace(TCP, wmem_max=1, congestion="cubic", slow_start_after_idle=True)
    good(network.tcp(poor, 0.06, hub_here=False, spoke_here=True))
    debian = replace(TCP, rmem_max=6 << 20)
    good(network.tcp(debian, 0.06, hub_here=False, spoke_here=True))
    good(network.tcp(debian, 0.0, hub_here=False, spoke_here=True))
    far = only(network.tcp(debian, 0.3, hub_here=False, spoke_here=True), WARNING)
    assert "336 MB/s at most over 300 ms" in far.found
    assert "tcp_rmem='4096 131072 33554432'" in far.remedy
    assumed = network.tcp(debian, None, hub_here=False, spoke_here=True)
    assert "60 ms (assumed)" in assumed[0].found


def test_remedy_for_a_buffer_is_enough() -> None:
    for rtt_s in (0.07, 0.15, 0.3, 0.6, 0.9):
        small = replace(TCP, rmem_max=1 << 16)
        [found] = network.tcp(small, rtt_s, hub_here=False, spoke_here=True)
        enough = replace(TCP, rmem_max=int(found.remedy.rstrip("'").split()[-1]))
        good(network.tcp(enough, rtt_s, hub_here=False, spoke_here=True))


@pytest.mark.parametrize(
    ("facts", "severity", "said"),
    [
        (LimitFacts(256), PROBLEM, "256 descriptors"),
        (LimitFacts(4096), WARNING, "4096 descriptors"),
        (LimitFacts(1 << 20, 8192, 9000), WARNING, "9000 folders"),
        (LimitFacts(1 << 20, None, 9000), WARNING, "no inotify"),
        (LimitFacts(1 << 20, 8192, 900, counted_all=False), NOTE, "more than 900 folders"),
    ],
)
def test_limits(facts: LimitFacts, severity: Severity, said: str) -> None:
    assert said in only(host.limits(facts), severity).found


@pytest.mark.parametrize(
    ("facts", "signs", "severity", "said"),
    [
        (ClockFacts(False, True), False, PROBLEM, "CLOCK_BOOTTIME"),
        (ClockFacts(True, None), True, NOTE, "not checked"),
        (ClockFacts(True, False), False, NOTE, "not synchronized"),
        (ClockFacts(True, False), True, WARNING, "signed"),
        (ClockFacts(True, True, 16.0), True, WARNING, "off by up to 16 s"),
    ],
)
def test_clock(facts: ClockFacts, signs: bool, severity: Severity, said: str) -> None:
    assert said in only(host.clock(facts, signs=signs), severity).found


def test_names() -> None:
    beside = "beside the buckets: not a folder"
    facts = NameFacts("/data", 5, True, {beside: 4}, {beside: ["/data/a", "/data/b", "c", "d"]})
    found = only(names.in_store(facts), WARNING)
    assert "4 left out, beside the buckets: not a folder: /data/a, /data/b, c, ..." in found.found
    assert "--bucket NAME" in found.remedy
    found = only(names.in_store(NameFacts("/d", 5, True, {"new": 1}, {"new": ["x"]})), WARNING)
    assert "rename it" in found.remedy
    found = only(
        names.on_mount(NameFacts("u", 5, True, {"'..'": 1}, {"'..'": ["b/../x"]})), WARNING
    )
    assert "b/../x" in found.found
    assert "read it by S3" in found.remedy


def test_names_not_all_looked_at_are_no_ok() -> None:
    assert "first 7" in only(names.in_store(NameFacts("/d", 7, False)), NOTE).found
    partly = names.on_mount(NameFacts("u", 7, False, {"r": 1}, {"r": ["x"]}))
    assert [f.severity for f in partly] == [WARNING, NOTE]


def test_worst_and_sizes() -> None:
    assert worst([]) is OK
    assert (
        worst([Finding("a", NOTE, ""), Finding("b", PROBLEM, ""), Finding("c", OK, "")]) is PROBLEM
    )
    assert [size(n) for n in (0, 1536, 3 << 40, 5 << 50)] == ["0 B", "1.5 KiB", "3 TiB", "5120 TiB"]
