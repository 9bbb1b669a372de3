"""Facts as they are collected on this machine, and on pictures of others."""

import os
import threading
from pathlib import Path

import pytest

from hubspoke.adapters.folders import FolderLock, holder
from hubspoke.doctor import examine, facts_cache, facts_host, facts_mount, facts_store
from hubspoke.doctor.examine import Examination, Subject
from hubspoke.doctor.judge.finding import Severity
from hubspoke.frontends.fuse.mounting import has_admin


def picture(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_folder_that_does_not_exist_is_judged_by_the_one_above_and_not_made(tmp_path: Path) -> None:
    facts = facts_cache.folder(tmp_path / "not" / "yet", "--cache", measure=True)
    assert facts.error is None
    assert facts.holes is not None
    assert facts.holes.error is None
    assert facts.holes.seen
    assert facts.holes.punched
    assert facts.free > 0
    assert facts.holder is None
    assert facts.speed is not None or "direct I/O" in str(facts.speed_error)
    assert os.listdir(tmp_path) == []


def test_folder_in_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".hubspoke").mkdir()
    facts = facts_cache.folder(tmp_path / "cache", "--cache", measure=False)
    assert "lies in the store" in str(facts.error)


def test_file_as_folder_is_told(tmp_path: Path) -> None:
    path = picture(tmp_path, file="x") / "file"
    assert "Not a directory" in str(facts_cache.folder(path, "--cache", measure=False).error)


def test_holder_of_a_folder_is_named_and_not_disturbed(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    lock = FolderLock(tmp_path, "--cache")
    assert holder(tmp_path) == f"process {os.getpid()}"
    lock.release()
    assert holder(tmp_path) is None
    FolderLock(tmp_path, "--cache").release()


def test_store_is_walked_and_its_folders_are_counted(tmp_path: Path) -> None:
    root = picture(tmp_path, data__a__b__c="1", data__d="2", beside="3", Upper__x="4")
    facts = facts_store.store(root, None, 10.0)
    assert facts.folders == 4  # the root, data, data/a, data/a/b
    assert facts.names.looked_at == 2
    assert facts.names.complete
    assert facts.names.counts == {
        "beside the buckets: not a folder": 1,
        "beside the buckets: not a legal bucket name": 1,
    }
    whole = facts_store.store(root, "all", 10.0).names
    assert (whole.looked_at, whole.counts) == (4, {})


def test_walk_that_takes_too_long_says_so(tmp_path: Path) -> None:
    root = picture(tmp_path, data__a="1")
    assert not facts_store.store(root, None, -1.0).names.complete


def test_sysctls_that_are_missing_are_none(tmp_path: Path) -> None:
    facts = facts_host.tcp(tmp_path)
    assert (facts.rmem_max, facts.congestion, facts.slow_start_after_idle) == (None, None, None)
    assert facts_host.limits(3, proc=tmp_path).watches is None
    proc = picture(
        tmp_path, sys__net__ipv4__tcp_rmem="4096\t131072\t6291456\n",
        sys__net__ipv4__tcp_slow_start_after_idle="1\n",
        sys__net__ipv4__tcp_available_congestion_control="reno cubic\n",
        sys__net__ipv4__tcp_congestion_control="cubic\n",
        sys__fs__inotify__max_user_watches="8192\n",
    )  # fmt: skip
    facts = facts_host.tcp(proc)
    assert (facts.rmem_max, facts.congestion, facts.slow_start_after_idle) == (
        6 << 20,
        "cubic",
        True,
    )
    assert facts.available == ("reno", "cubic")
    assert facts_host.limits(3, proc=proc).watches == 8192


def test_clock_of_this_machine_is_read() -> None:
    facts = facts_host.clock()
    assert facts.boottime
    assert facts.error_s >= 0


def test_mount_point_that_is_not_there(tmp_path: Path) -> None:
    facts = facts_mount.mount_point(tmp_path / "none")
    assert facts.error == "No such file or directory"
    assert not facts.gone
    assert facts_mount.mount_point(tmp_path).entries == 0
    assert facts_mount.mount_point(picture(tmp_path, x="")).entries == 1
    assert facts_mount.mount_point(Path("/proc")).mounted == "proc"


@pytest.mark.skipif(not has_admin(), reason="mounting takes CAP_SYS_ADMIN")
@pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="no /dev/fuse")
def test_trial_mount_asks_the_kernel_and_leaves_nothing() -> None:
    init = facts_mount.trial_mount()
    assert init.major == 7
    assert init.minor >= 31
    assert "hubspoke-doctor" not in Path("/proc/self/mountinfo").read_text()


def test_check_that_hangs_is_told_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hangs() -> list[object]:
        release.wait(30)
        return []

    monkeypatch.setattr(examine, "_fuse", hangs)
    monkeypatch.setattr(examine, "FUSE_S", 0.05)
    try:
        found = list(Examination(Subject()).findings())
    finally:
        release.set()
    assert found[0].severity is Severity.WARNING
    assert "not checked: no answer in 0.05 s" in found[0].found
    assert {f.check for f in found} >= {"fuse", "tcp", "clock", "limits"}


def test_store_that_cannot_be_listed_is_a_problem(tmp_path: Path) -> None:
    found = list(Examination(Subject(store=tmp_path / "none")).findings())
    [store] = [f for f in found if f.check == "store"]
    assert store.severity is Severity.PROBLEM
    assert "cannot be listed" in store.found and str(tmp_path / "none") in store.found
    assert store.remedy is not None and "--store" in store.remedy
    assert not any(f.check == "fuse" for f in found)  # a hub mounts nothing


def test_a_mount_point_is_found_by_its_exact_name(tmp_path: Path) -> None:
    """The kernel writes blanks as \\040 and other characters as they are."""
    point = tmp_path / "with blank and \N{SNOWMAN}"
    point.mkdir()
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    shown = str(point).replace(" ", "\\040")
    line = f"40 1 0:50 / {shown} ro,nosuid - fuse.hubspoke hubspoke ro\n"
    (proc / "self" / "mountinfo").write_text(line, encoding="utf-8")
    assert facts_mount.mount_point(point, proc=proc).mounted == "fuse.hubspoke"
