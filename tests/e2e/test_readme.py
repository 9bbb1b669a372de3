"""The README's own commands, run as they are printed."""

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PORTS = (7070, 7071, 8080, 8081)
WAIT_S = 90.0


def block(with_words: str) -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = [b for b in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) if with_words in b]
    return str(found)


def _taken(port: int) -> bool:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def checkout(folder: Path) -> Path:
    """A folder in which `make install` has nothing to do: the command is this environment's."""
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    binaries = folder / ".venv" / "bin"
    binaries.mkdir(parents=True)
    command = binaries / "hubspoke"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hubspoke "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    (binaries / "activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
    (folder / ".venv" / ".installed").touch()
    return folder


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """On a file system in memory where there is one: a drive that other tests keep busy for 250 ms
    is passed by, and the second read of the block is then no hit."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shutil.disk_usage(shared).free < 1 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


@pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("bash", "make", "curl")),
    reason="the block needs bash, make and curl",
)
@pytest.mark.timeout(2 * WAIT_S)
def test_the_ten_lines_run_as_printed(tmp_path: Path, memory_folder: Path) -> None:
    taken = [port for port in PORTS if _taken(port)]
    if taken:
        pytest.skip(f"ports {taken} are in use, and the block has the default ones")
    folder = checkout(memory_folder / "checkout")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HUBSPOKE_")}
    shell = subprocess.Popen(
        ["bash"],
        cwd=folder,
        env={**clean, "XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "100"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, log = shell.communicate(block("make install"), WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)  # its own session: everything the block has started
        out, log = shell.communicate()
        pytest.fail(f"not done after {WAIT_S:g} s: {out}{log}")
    codes = re.findall(r"^(\d+) in [\d.]+ s$", out, re.M)
    assert codes == ["200", "200"], out + log
    data = (folder / "out" / "store" / "data" / "tokens.bin").read_bytes()
    for name in ("miss", "hit"):
        assert (folder / "out" / name).read_bytes() == data, name
    assert re.search(r"^requests +2$", out, re.M), out
    assert re.search(r"^hit / late / miss +1 / 0 / 1$", out, re.M), out
    assert not any(_taken(port) for port in PORTS), "the last line ends both"
