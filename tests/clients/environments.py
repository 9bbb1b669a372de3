"""Virtual environments for foreign packages, kept in .venvs: a second run needs no network."""

import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent.parent.parent / ".venvs"
INSTALL_S = 1500


def environment(name: str, *requirements: str, alone: tuple[str, ...] = ()) -> Path:
    """The `bin` of a virtual environment that has the requirements and nothing of ours.

    alone: packages to install without those that they require.
    """
    folder = ENVIRONMENTS / name
    stamp = folder / "requirements.txt"
    wanted = "\n".join([*requirements, *alone])
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=300)
        install = [str(folder / "bin" / "pip"), "install", "--quiet", *requirements]
        subprocess.run(install, check=True, timeout=INSTALL_S)
        if alone:
            install = [str(folder / "bin" / "pip"), "install", "--quiet", "--no-deps", *alone]
            subprocess.run(install, check=True, timeout=INSTALL_S)
        stamp.write_text(wanted)
    return folder / "bin"
