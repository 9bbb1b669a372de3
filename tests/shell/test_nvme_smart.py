"""The SMART log and the kernel's block statistics, from bytes laid out as the documents say."""

import os
import struct
from pathlib import Path

import pytest

from hubspoke.adapters import disk_stats, nvme_smart


def a_log() -> bytearray:
    """NVM Express base specification 2.0, figure 207: offsets in bytes, little endian."""
    log = bytearray(512)
    log[0] = 0b000101  # critical warning: spare low, reliability degraded
    log[1:3] = struct.pack("<H", 273 + 41)  # composite temperature, kelvin
    log[3] = 98  # available spare, %
    log[4] = 10  # its threshold
    log[5] = 7  # percentage used
    log[32:48] = (2_000_000).to_bytes(16, "little")  # data units read
    log[48:64] = (3_000_000).to_bytes(16, "little")  # data units written
    log[128:144] = (8_760).to_bytes(16, "little")  # power on hours
    log[160:176] = (2).to_bytes(16, "little")  # media errors
    return log


def test_the_smart_log_is_read_at_the_specified_offsets() -> None:
    smart = nvme_smart.parse(bytes(a_log()))
    assert smart.temperature_celsius == 41
    assert (smart.available_spare_percent, smart.used_percent) == (98, 7)
    assert smart.read_bytes == 2_000_000 * 512_000
    assert smart.written_bytes == 3_000_000 * 512_000
    assert (smart.power_on_hours, smart.media_errors) == (8_760, 2)
    assert smart.warnings == ["spare_low", "reliability_degraded"]


def test_counters_of_more_than_64_bits_are_read() -> None:
    log = a_log()
    log[48:64] = (1 << 70).to_bytes(16, "little")
    assert nvme_smart.parse(bytes(log)).written_bytes == (1 << 70) * 512_000


def test_a_short_log_is_refused() -> None:
    with pytest.raises(ValueError, match="100 bytes"):
        nvme_smart.parse(bytes(100))


def test_the_admin_command_has_the_kernels_layout() -> None:
    """struct nvme_passthru_cmd: get log page 02h of all namespaces, 512 bytes."""
    command = nvme_smart.command(0x1122334455667788)
    assert len(command) == 72
    assert command[0] == 0x02
    assert struct.unpack_from("<I", command, 4) == (0xFFFFFFFF,)
    assert struct.unpack_from("<Q", command, 24) == (0x1122334455667788,)
    assert struct.unpack_from("<I", command, 36) == (512,)
    assert struct.unpack_from("<I", command, 40) == (127 << 16 | 0x02,)


def test_a_drive_that_is_no_nvme_or_is_not_there_has_no_log() -> None:
    assert nvme_smart.read("sda") is None
    assert nvme_smart.read("nvme77n1") is None


def test_block_statistics_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    block = tmp_path / "block" / "vdx"
    block.mkdir(parents=True)
    (block / "size").write_text("2097152\n")
    (block / "stat").write_text(
        "  100  5  8000  40  200  6  16000  90  3  1500  130  0 0 0 0 1 2\n"
    )
    drive = disk_stats.drive("vdx", tmp_path)
    assert drive is not None
    assert drive.capacity_bytes == 1 << 30
    assert (drive.read_bytes, drive.written_bytes) == (8000 * 512, 16000 * 512)
    assert (drive.in_flight, drive.busy_seconds, drive.smart) == (3, 1.5, None)
    assert disk_stats.drive("absent", tmp_path) is None
    (block / "stat").write_text("1 2 3\n")
    assert disk_stats.drive("vdx", tmp_path) is None


def test_a_partition_stands_for_its_drive(tmp_path: Path) -> None:
    number = os.stat(tmp_path).st_dev
    device = tmp_path / "devices" / "nvme0n1" / "nvme0n1p2"
    device.mkdir(parents=True)
    (tmp_path / "dev" / "block").mkdir(parents=True)
    link = tmp_path / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
    link.symlink_to(device)
    assert disk_stats.device_of(tmp_path, tmp_path) == "nvme0n1p2"
    (device / "partition").write_text("2\n")
    assert disk_stats.device_of(tmp_path, tmp_path) == "nvme0n1"
    assert disk_stats.device_of(Path("/proc")) is None
    assert disk_stats.device_of(tmp_path / "absent", tmp_path) is None


def test_io_pressure_is_a_share_and_absent_is_none(tmp_path: Path) -> None:
    path = tmp_path / "io"
    assert disk_stats.io_pressure(path) is None
    path.write_text(
        "some avg10=12.50 avg60=3.00 avg300=0.10 total=4000000\n"
        "full avg10=1.00 avg60=0.50 avg300=0.00 total=1500000\n"
    )
    pressure = disk_stats.io_pressure(path)
    assert pressure == disk_stats.Pressure(0.125, 0.03, 0.01, 0.005, 4.0, 1.5)
    path.write_text("nonsense\n")
    assert disk_stats.io_pressure(path) is None
