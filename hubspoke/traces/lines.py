"""Lines of a text trace, plain or gzip, with the place of each for errors."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from hubspoke.errors import FormatError

LINE_BYTES_MAX = 1 << 20
_GZIP = b"\x1f\x8b"


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text without its end). Raises FormatError naming file and line."""
    number = 0
    try:
        with closing(_opened(path)) as file:
            while line := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX:
                    raise wrong(path, number, f"more than {LINE_BYTES_MAX} bytes, expected a line")
                yield number, line.decode().rstrip("\r\n")
    except UnicodeDecodeError as e:
        raise wrong(path, number, f"byte {e.object[e.start]:#x}, expected text in UTF-8") from e
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise wrong(path, number + 1, f"damaged gzip: {e}") from e
    except OSError as e:
        raise FormatError(f"{path}: cannot be read: {e.strerror}") from e


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    file = path.open("rb")
    try:
        is_gzip = file.peek(2)[:2] == _GZIP
    except OSError:
        file.close()
        raise
    if not is_gzip:
        return file
    file.close()
    return gzip.open(path, "rb")


def wrong(path: Path, line: int, what: str) -> FormatError:
    return FormatError(f"{path}: line {line}: {what}")
