"""The SMART log of an NVMe drive, by the kernel's admin ioctl; no tool has to be installed.

Source: NVM Express base specification 2.0, log page 02h "SMART / Health Information"; Linux
include/uapi/linux/nvme_ioctl.h. Reading it needs the right to open the device.
"""

import ctypes
import fcntl
import os
import struct
from dataclasses import dataclass

LOG_BYTES = 512
_ADMIN_CMD = 0xC0484E41  # _IOWR('N', 0x41, struct nvme_passthru_cmd), 72 bytes
_COMMAND = struct.Struct("<BBHIIIQQIIIIIIIIII")
_GET_LOG_PAGE, _SMART = 0x02, 0x02
_ALL_NAMESPACES = 0xFFFFFFFF
_TIMEOUT_MS = 1_000
_UNIT_BYTES = 512_000  # the log counts in thousands of 512 bytes
_KELVIN = 273
WARNINGS = (  # bits of byte 0
    "spare_low",
    "temperature",
    "reliability_degraded",
    "read_only",
    "volatile_backup_failed",
    "persistent_memory_read_only",
)


@dataclass(frozen=True, slots=True)
class Smart:
    """used_percent: of the rated life, may exceed 100. warnings: critical ones, see WARNINGS."""

    temperature_celsius: int
    available_spare_percent: int
    used_percent: int
    read_bytes: int
    written_bytes: int
    power_on_hours: int
    media_errors: int
    warnings: list[str]


def parse(log: bytes) -> Smart:
    """Raises ValueError if the log is too short."""
    if len(log) < LOG_BYTES:
        raise ValueError(f"SMART log of {len(log)} bytes, expected {LOG_BYTES}")

    def number(at: int, length: int) -> int:
        return int.from_bytes(log[at : at + length], "little")

    return Smart(
        temperature_celsius=number(1, 2) - _KELVIN,
        available_spare_percent=log[3],
        used_percent=log[5],
        read_bytes=number(32, 16) * _UNIT_BYTES,
        written_bytes=number(48, 16) * _UNIT_BYTES,
        power_on_hours=number(128, 16),
        media_errors=number(160, 16),
        warnings=[name for bit, name in enumerate(WARNINGS) if log[0] & 1 << bit],
    )


def command(address: int) -> bytes:
    """The admin command that puts the log at `address`."""
    words = (LOG_BYTES // 4 - 1) << 16 | _SMART
    return _COMMAND.pack(
        _GET_LOG_PAGE, 0, 0, _ALL_NAMESPACES, 0, 0, 0, address, 0, LOG_BYTES,
        words, 0, 0, 0, 0, 0, _TIMEOUT_MS, 0,
    )  # fmt: skip


def read(device: str) -> Smart | None:
    """device: "nvme0n1". None if it is no NVMe drive or may not be asked. May block for a
    second."""
    if not device.startswith("nvme"):
        return None
    log = ctypes.create_string_buffer(LOG_BYTES)
    try:
        fd = os.open(f"/dev/{device}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = fcntl.ioctl(fd, _ADMIN_CMD, bytearray(command(ctypes.addressof(log))))
        finally:
            os.close(fd)
    except OSError:
        return None
    return parse(log.raw) if status == 0 else None
