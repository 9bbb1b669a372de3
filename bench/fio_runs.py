"""fio, started and understood. Needs the system's fio (Debian package fio)."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from hubspoke.errors import ConfigError

_DEADLINE_S: Final = 240.0


def fio(
    path: Path,
    *,
    rw: str,
    block: str,
    size: int | None = None,
    loops: int = 1,
    seconds: int | None = None,
) -> dict[str, float]:
    """Read `path` with psync, its cached pages left as they are.

    rw: read or randread. size: bytes from the start, or how many random reads make up; None is the
    whole file. seconds: stop then, however far it is. Returns mb_per_s, ops_per_s, p50_us, p99_us.
    """
    if shutil.which("fio") is None:
        raise ConfigError("fio is missing; install the Debian package fio")
    command = ["fio", "--name=read", f"--filename={path}", f"--rw={rw}", f"--bs={block}"]
    command += ["--ioengine=psync", "--readonly", "--invalidate=0", "--output-format=json"]
    command += [f"--loops={loops}", "--randrepeat=1", "--norandommap", "--fadvise_hint=0"]
    command += (
        [] if size is None else [f"--io_size={size}" if rw == "randread" else f"--size={size}"]
    )
    command += [] if seconds is None else [f"--runtime={seconds}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    if done.returncode != 0:
        raise ConfigError(f"fio: status {done.returncode}: {done.stderr.strip()[-500:]}")
    read: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
    latency = read["clat_ns"]["percentile"]
    return {
        "mb_per_s": read["bw_bytes"] / 1e6,
        "ops_per_s": read["iops"],
        "p50_us": latency["50.000000"] / 1e3,
        "p99_us": latency["99.000000"] / 1e3,
        "bytes": float(read["io_bytes"]),
    }
