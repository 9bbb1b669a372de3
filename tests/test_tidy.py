"""A ratchet on shape: sizes, docstrings, dead files, links, and nothing of one machine.

What is above a limit today stands in a table with its size and may only shrink; nothing new may
join it.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hubspoke"
MODULE_LINES = 400
FUNCTION_LINES = 70

# path -> lines allowed; make it smaller when the file gets smaller, delete it at the limit.
LONG_MODULES: dict[str, int] = {}
# "path:function" -> lines allowed.
LONG_FUNCTIONS: dict[str, int] = {}

# Where a process begins, or what the outside names as a string.
ENTRIES = {"hubspoke.cli", "hubspoke.__main__", "hubspoke.torch"}
# Adapters that fill the ports in memory, or with faults: part of the package, so that those who
# build on the ports can test against them; here the contract tests use them. A simulated fleet and
# what checks its histories are started by tests; the simulator of jobs is `hubspoke simulate`.
FOR_TESTS = ("hubspoke.adapters.memory", "hubspoke.adapters.faulty", "hubspoke.sim")
FOR_USERS = "hubspoke.sim.prediction"


def tracked(*suffixes: str) -> list[Path]:
    """Files of the repository, also new ones; without git (an unpacked archive) all files."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(git, capture_output=True, check=True, timeout=30).stdout
        paths = [ROOT / name for name in listed.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [p for p in ROOT.rglob("*") if not _is_made(p.relative_to(ROOT))]
    return sorted(p for p in set(paths) if p.is_file() and p.suffix in suffixes)


def _is_made(path: Path) -> bool:
    """What tools leave behind: hidden folders other than the CI's."""
    return any(part.startswith(".") and part != ".ci" for part in path.parts[:-1])


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


SOURCES = tracked(".py")
OURS = [path for path in SOURCES if PACKAGE in path.parents]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_modules_are_short() -> None:
    lines = {name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in OURS}
    long = {name: n for name, n in lines.items() if n > LONG_MODULES.get(name, MODULE_LINES)}
    assert long == {}, "split them: a file that needs a second essay at its head is two files"
    loose = {name: n for name, n in LONG_MODULES.items() if lines.get(name, 0) < n}
    assert loose == {}, "these shrank: lower their number in LONG_MODULES"


def test_functions_are_short() -> None:
    lines = {
        f"{name_of(path)}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in SOURCES
        for node in functions(path)
    }
    long = {name: n for name, n in lines.items() if n > LONG_FUNCTIONS.get(name, FUNCTION_LINES)}
    assert long == {}
    loose = {name: n for name, n in LONG_FUNCTIONS.items() if lines.get(name, 0) < n}
    assert loose == {}, "these shrank: lower their number in LONG_FUNCTIONS"


def test_modules_have_a_docstring() -> None:
    bare = [
        name_of(path)
        for path in SOURCES
        if path.read_text(encoding="utf-8").strip() and not ast.get_docstring(tree(path))
    ]
    assert bare == []


Public = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _public_bodies(path: Path) -> Iterator[tuple[str, Public]]:
    """Public classes and functions at the top of a module."""
    for node in tree(path).body:
        if isinstance(node, Public) and not node.name.startswith("_"):
            yield f"{name_of(path)}:{node.name}", node


# A short function, or a table of values, says what it is by its names.
_SHORT_LINES = 8
BARE_MAX = 20  # only ever lower this
_TABLE = ("Struct", "NamedTuple", "Enum", "TypedDict", "Protocol")


def test_public_things_have_a_docstring() -> None:
    bare = [
        name
        for path in OURS
        for name, node in _public_bodies(path)
        if not ast.get_docstring(node)
        and ast.unparse(node).count("\n") >= _SHORT_LINES
        and not (isinstance(node, ast.ClassDef) and _is_table(node))
    ]
    assert len(bare) <= BARE_MAX, bare


def _is_table(node: ast.ClassDef) -> bool:
    """Fields only: a message, a named tuple, a dataclass without methods, a protocol."""
    if any(ast.unparse(base).endswith(_TABLE) for base in node.bases):
        return True
    return all(isinstance(part, ast.AnnAssign) for part in node.body)


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, modules: set[str]) -> set[str]:
    """The package's modules that `path` imports, or starts by name (`python -m`)."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found |= {module} | {f"{module}.{alias.name}" for alias in names}
            case ast.Constant(value=str(text)) if text in modules:
                found.add(text)
    packages = {".".join(m.split(".")[:i]) for m in found for i in range(1, m.count(".") + 1)}
    return (found | packages) & modules


def test_every_module_is_reached_from_an_entry_point() -> None:
    by_module = {_module(path): path for path in OURS}
    modules = set(by_module)
    starts = [p for p in SOURCES if p.relative_to(ROOT).parts[0] == "bench"]
    reached = ENTRIES & modules
    for path in starts:
        reached |= _imports(path, modules)
    queue = list(reached)
    while queue:
        for module in _imports(by_module[queue.pop()], modules) - reached:
            reached.add(module)
            queue.append(module)
    unreached = modules - reached
    left = {m for m in unreached if m.startswith(FOR_USERS) or not m.startswith(FOR_TESTS)}
    dead = sorted(m for m in left if by_module[m].read_text(encoding="utf-8").strip())
    assert dead == [], "imported by nothing that a user can start"


@pytest.mark.parametrize("path", tracked(".md"), ids=name_of)
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    missing = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert missing == []


def test_tests_named_in_the_documents_exist() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in tracked(".md"))
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text))
    existing = {name_of(path): {f.name for f in functions(path)} for path in SOURCES}
    missing = [(p, f) for p, f in named if p not in existing or (f and f not in existing[p])]
    assert missing == []


def test_no_file_names_a_registry_or_a_folder_of_one_machine() -> None:
    # Assembled, or this file would find itself.
    places = ["/" + "work/", "/" + "root/", "pypi" + ".org", "pythonhosted" + ".org"]
    places += ["registry" + ".npmjs", "deb.debian" + ".org", "/" + "home/"]
    suffixes = (".py", ".md", ".toml", ".json", ".yaml", ".yml", ".html", ".js", ".css", "")
    found = [
        f"{name_of(path)}: {place}"
        for path in tracked(*suffixes)
        for place in places
        if place in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []
