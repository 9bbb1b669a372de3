"""XML of S3: writing by hand, reading with the standard library's parser.

Text that XML 1.0 cannot hold (U+0001..U+001F but tab, LF, CR; U+FFFE, U+FFFF) is written as
numeric references, as S3 does: strict parsers reject these, which is why clients ask for
`encoding-type=url`. Nothing is dropped or replaced. Document types are refused, so there are no
entities to expand.
"""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime

from hubspoke.errors import FormatError

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'

_SPECIAL = re.compile('[&<>"\r\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]')
_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


def _reference(match: re.Match[str]) -> str:
    char = match[0]
    return _NAMED.get(char) or f"&#x{ord(char):X};"


def escape(text: str) -> str:
    """`text` as the content of an element; carriage returns survive as references."""
    return _SPECIAL.sub(_reference, text) if _SPECIAL.search(text) else text


def element(name: str, text: str | int) -> str:
    return f"<{name}>{escape(str(text))}</{name}>"


def document(root: str, inner: str) -> bytes:
    return f'{DECLARATION}<{root} xmlns="{NAMESPACE}">{inner}</{root}>'.encode()


def timestamp(unix_ns: int) -> str:
    """S3's form of a time, in milliseconds."""
    t = datetime.fromtimestamp(unix_ns // 1_000_000_000, UTC)
    return f"{t:%Y-%m-%dT%H:%M:%S}.{unix_ns // 1_000_000 % 1000:03d}Z"


class Node:
    """An element without its namespace, so that clients may or may not declare one."""

    __slots__ = ("_element",)

    def __init__(self, element: "ET.Element[str]") -> None:
        self._element = element

    @property
    def tag(self) -> str:
        return str(self._element.tag).rpartition("}")[2]

    def children(self, name: str) -> list["Node"]:
        return [node for node in map(Node, self._element) if node.tag == name]

    def text(self, name: str) -> str | None:
        """Text of the only child called `name`; None if there is none, "" if it is empty."""
        found = self.children(name)
        if not found:
            return None
        if len(found) > 1:
            raise FormatError(f"more than one <{name}>")
        return found[0]._element.text or ""


def parse(data: bytes, root: str) -> Node:
    """The document's root, which must be called `root`. Raises FormatError."""
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise FormatError("document types are not accepted")
    try:
        node = Node(ET.fromstring(data))
    except (ET.ParseError, ValueError, LookupError) as e:
        raise FormatError(f"not well-formed: {e}") from e
    if node.tag != root:
        raise FormatError(f"<{root}> expected, <{node.tag}> found")
    return node
