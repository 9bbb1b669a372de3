"""The dataset builder: real text in, deterministic token files and a truthful index out."""

import fcntl
import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from hubspoke.errors import ConfigError, FolderInUse, FormatError
from hubspoke.lab.corpus import python_roots, read_corpus
from hubspoke.lab.dataset import (
    INDEX_NAME,
    TOKENIZER_NAME,
    DatasetConfig,
    build_dataset,
    load_index,
)

SMALL = DatasetConfig(sequences=50, sequence_tokens=64, files=4, vocabulary=400)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    (folder / "deep").mkdir(parents=True)
    for i in range(20):
        (folder / "deep" / f"{i:02}.md").write_text(f"# Page {i}\n\nThe ship {i} sails at dawn.\n")
    (folder / "twin.txt").write_text("# Page 3\n\nThe ship 3 sails at dawn.\n")
    (folder / "binary.py").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "empty.rst").write_bytes(b"")
    (folder / "picture.png").write_text("not a document by its name")
    (folder / "link.py").symlink_to(folder / "deep" / "01.md")
    return folder


def test_files_hold_whole_sequences_and_the_index_tells_the_truth(
    tmp_path: Path, text: Path
) -> None:
    folder = tmp_path / "store" / "tokens"
    index = build_dataset(folder, SMALL, sources=[text])
    assert [f.sequences for f in index.files] == [13, 13, 12, 12]
    assert sum(f.sequences for f in index.files) == index.sequences == 50
    for file in index.files:
        data = (folder / file.name).read_bytes()
        assert len(data) == file.bytes == file.sequences * 64 * 2 == file.tokens * 2
        assert hashlib.sha256(data).hexdigest() == file.sha256
        tokens = np.frombuffer(data, "<u2")
        assert tokens.max() < index.vocabulary <= 400
        assert int((tokens == 0).sum()) == file.documents
    assert index.tokens == 50 * 64
    assert index.source_documents == 20, "each content once, only UTF-8 text, no links"
    assert load_index(folder) == index
    assert sorted(p.name for p in folder.parent.iterdir()) == ["tokens"], "nothing left beside it"


def test_tokens_decode_to_the_text(tmp_path: Path, text: Path) -> None:
    from tokenizers import Tokenizer

    folder = tmp_path / "tokens"
    index = build_dataset(folder, SMALL, sources=[text])
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_NAME))
    tokens = np.concatenate(
        [np.frombuffer((folder / f.name).read_bytes(), "<u2") for f in index.files]
    )
    parts = np.split(tokens, np.flatnonzero(tokens == 0))
    decoded = [tokenizer.decode(part[1:].tolist()) for part in parts[1:-1]]
    wanted = {f"# Page {i}\n\nThe ship {i} sails at dawn.\n".replace("\n", "Ċ") for i in range(20)}
    got = {d.replace(" ", "").replace("Ġ", " ").replace("\n", "Ċ") for d in decoded}
    assert got == wanted, "all documents, whole and nothing else"
    assert len(decoded) > 20, "the documents are tiled"


def test_each_round_of_tiling_has_another_order(tmp_path: Path, text: Path) -> None:
    folder = tmp_path / "tokens"
    index = build_dataset(folder, SMALL, sources=[text])
    tokens = np.concatenate(
        [np.frombuffer((folder / f.name).read_bytes(), "<u2") for f in index.files]
    )
    documents = [part.tobytes() for part in np.split(tokens, np.flatnonzero(tokens == 0))[1:-1]]
    first, second = documents[:20], documents[20:40]
    assert set(first) == set(second) and first != second


def test_same_input_gives_the_same_bytes_and_another_seed_does_not(
    tmp_path: Path, text: Path
) -> None:
    one = build_dataset(tmp_path / "one", SMALL, sources=[text])
    two = build_dataset(tmp_path / "two", SMALL, sources=[text])
    assert one == two
    other = DatasetConfig(sequences=50, sequence_tokens=64, files=4, vocabulary=400, seed=1)
    three = build_dataset(tmp_path / "three", other, sources=[text])
    assert [f.sha256 for f in three.files] != [f.sha256 for f in one.files]


def test_uint32_files_hold_the_same_tokens(tmp_path: Path, text: Path) -> None:
    config = DatasetConfig(
        sequences=50, sequence_tokens=64, files=1, vocabulary=400, dtype="uint32"
    )
    narrow = DatasetConfig(sequences=50, sequence_tokens=64, files=1, vocabulary=400)
    wide = build_dataset(tmp_path / "wide", config, sources=[text])
    small = build_dataset(tmp_path / "small", narrow, sources=[text])
    assert wide.sequence_bytes == 256 and small.sequence_bytes == 128
    a = np.frombuffer((tmp_path / "wide" / wide.files[0].name).read_bytes(), "<u4")
    b = np.frombuffer((tmp_path / "small" / small.files[0].name).read_bytes(), "<u2")
    assert (a == b).all()


def test_finished_dataset_is_used_again(tmp_path: Path, text: Path) -> None:
    folder = tmp_path / "tokens"
    index = build_dataset(folder, SMALL, sources=[text])
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    steps: list[str] = []
    again = build_dataset(
        folder, SMALL, sources=[text], progress=lambda what, _d, _t: steps.append(what)
    )
    assert again == index
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before
    assert set(steps) == {"reading text"}


@pytest.mark.parametrize("damage", ["cut file", "no file", "bad index", "no parameters"])
def test_damaged_dataset_is_built_again(tmp_path: Path, text: Path, damage: str) -> None:
    folder = tmp_path / "tokens"
    index = build_dataset(folder, SMALL, sources=[text])
    victim = folder / index.files[1].name
    match damage:
        case "cut file":
            os.truncate(victim, 10)
        case "no file":
            victim.unlink()
        case "bad index":
            (folder / INDEX_NAME).write_text("{")
        case _:
            raw = json.loads((folder / INDEX_NAME).read_text())
            del raw["parameters"]
            (folder / INDEX_NAME).write_text(json.dumps(raw))
    with pytest.raises(FormatError):
        load_index(folder)
    assert build_dataset(folder, SMALL, sources=[text]) == index == load_index(folder)


def test_changed_text_or_parameters_build_again(tmp_path: Path, text: Path) -> None:
    folder = tmp_path / "tokens"
    first = build_dataset(folder, SMALL, sources=[text])
    (text / "new.txt").write_text("Something else entirely.\n")
    second = build_dataset(folder, SMALL, sources=[text])
    assert second.text_sha256 != first.text_sha256
    longer = DatasetConfig(sequences=60, sequence_tokens=64, files=4, vocabulary=400)
    assert build_dataset(folder, longer, sources=[text]).sequences == 60


def test_leftovers_of_a_killed_build_are_replaced(tmp_path: Path, text: Path) -> None:
    partial = tmp_path / ".tokens.partial"
    partial.mkdir()
    (partial / "tokens-00000-of-00004.bin").write_bytes(b"half")
    build_dataset(tmp_path / "tokens", SMALL, sources=[text])
    assert not partial.exists()


def test_foreign_folder_is_never_removed(tmp_path: Path, text: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "holiday.jpg").write_bytes(b"dear")
    with pytest.raises(ConfigError, match="not a dataset of ours"):
        build_dataset(folder, SMALL, sources=[text])
    assert (folder / "holiday.jpg").read_bytes() == b"dear"


def test_two_builders_of_one_folder_exclude_each_other(tmp_path: Path, text: Path) -> None:
    parent = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)
        with pytest.raises(FolderInUse, match="another process"):
            build_dataset(tmp_path / "tokens", SMALL, sources=[text])
    finally:
        os.close(parent)


def test_missing_tokenizers_names_the_extra(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[lab\]'"):
        build_dataset(tmp_path / "tokens", SMALL, sources=[text])
    assert not (tmp_path / ".tokens.partial").exists()


def test_unusable_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: no such file or folder"):
        build_dataset(tmp_path / "tokens", SMALL, sources=[tmp_path / "nowhere"])
    empty = tmp_path / "void"
    empty.mkdir()
    with pytest.raises(ConfigError, match="void: no UTF-8 document"):
        build_dataset(tmp_path / "tokens", SMALL, sources=[empty])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"files": 9, "sequences": 8}, "more than its 8 sequences"),
        ({"sequences": 0}, "sequences 0: must be at least 1"),
        ({"vocabulary": 100}, "256 bytes and one separator"),
        ({"vocabulary": 70_000}, "choose uint32"),
    ],
)
def test_wrong_parameters_say_what_would_be_right(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DatasetConfig(**wrong)  # type: ignore[arg-type]  # all int here, mypy sees one **dict


def test_this_python_has_enough_text_for_the_default() -> None:
    corpus = read_corpus(
        python_roots(), text_bytes_max=1 << 20, seed=0, progress=lambda _w, _d, _t: None
    )
    assert corpus.text_bytes >= 1 << 20
    assert any("def " in text for text in corpus.documents)


def test_one_file_can_be_the_source(tmp_path: Path, text: Path) -> None:
    single = text / "deep" / "07.md"
    index = build_dataset(tmp_path / "tokens", SMALL, sources=[single])
    assert index.source_documents == 1
