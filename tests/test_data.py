"""The data layer on tiny made-up files of every form, and on the real files where $WHALEFL_DATA has them."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import lzma
import os
import pickle
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from whalefl.cli.data import fetch_data, list_data
from whalefl.errors import WhaleflError
from whalefl.tasks.data import compact, official, sources, store
from whalefl.tasks.data.datasets import DATASETS, Arrays, Expected
from whalefl.tasks.data.fetch import fetch
from whalefl.tasks.data.listing import inventory
from whalefl.tasks.data.pickles import load_batch
from whalefl.tasks.data.store import load
from whalefl.tasks.data.words import encode, vocabulary

TEXTS = {
    "train": " \n = First = \n \n The cat , the <unk> . \n = Played , W = \n \n"
    " = = Part = = \n \n = Second one = \n \n end \n",
    "valid": " \n = Third = \n \n A dog \n",
    "test": " \n = Vörös = \n \n naïve cat \n",
}
REAL = Path(os.environ.get("WHALEFL_DATA") or "absent")


# Tiny data sets, and the files that hold them


def tiny(name: str) -> Arrays:
    rng = np.random.default_rng(0)
    if name == "wikitext2":
        return encode(**TEXTS)
    sizes = {"mnist": (6, 4), "cifar10": (10, 2), "har": (5, 3)}[name]
    arrays: Arrays = {}
    for split, size in zip(("train", "test"), sizes, strict=True):
        if name == "har":
            arrays[f"x_{split}"] = rng.normal(size=(size, 9, 128)).astype(np.float32)
            arrays[f"y_{split}"] = rng.integers(0, 6, size).astype(np.uint8)
            arrays[f"subject_{split}"] = rng.integers(1, 31, size).astype(np.uint8)
        else:
            shape = (28, 28) if name == "mnist" else (3, 32, 32)
            arrays[f"x_{split}"] = rng.integers(0, 256, (size, *shape)).astype(np.uint8)
            arrays[f"y_{split}"] = rng.integers(0, 10, size).astype(np.uint8)
    return arrays


def official_files(name: str) -> dict[str, bytes]:
    return dict(_made_official(name))


@functools.cache  # archives hold the time they were made at, so they are made once
def _made_official(name: str) -> dict[str, bytes]:
    arrays = tiny(name)
    if name == "mnist":
        keys = ("x_train", "y_train", "x_test", "y_test")
        return {
            file: gzip.compress(idx(arrays[key])) for file, key in zip(official.LAYOUTS[name][0], keys, strict=True)
        }
    if name == "cifar10":
        return {"cifar-10-python.tar.gz": cifar_archive(arrays)}
    if name == "wikitext2":
        texts = {f"wikitext-2/wiki.{split}.tokens": text.encode() for split, text in TEXTS.items()}
        return {"wikitext-2-v1.zip": zipped(texts)}
    return {"UCI HAR Dataset.zip": zipped(har_texts(arrays))}


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def har_texts(arrays: Arrays) -> dict[str, bytes]:
    files = {"UCI HAR Dataset/README.txt": b"about"}
    for split in ("train", "test"):
        folder = f"UCI HAR Dataset/{split}"
        for channel, signal in enumerate(official.SIGNALS):
            rows = [" ".join(f"{value: .8e}" for value in row) for row in arrays[f"x_{split}"][:, channel]]
            files[f"{folder}/Inertial Signals/{signal}_{split}.txt"] = ("\n".join(rows) + "\n").encode()
        files[f"{folder}/y_{split}.txt"] = "".join(f"{label + 1}\n" for label in arrays[f"y_{split}"].tolist()).encode()
        files[f"{folder}/subject_{split}.txt"] = "".join(f"{who}\n" for who in arrays[f"subject_{split}"]).encode()
    return files


def python2_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    """A batch as Python 2 pickled the official ones: byte strings, protocol 2, the old module name of numpy."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    numbers = b"".join(b"K" + bytes([label]) for label in labels.tolist())
    shape = b"K" + bytes([len(images)]) + b"M\x00\x0c\x86"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN" + 2 * b"J\xff\xff\xff\xff"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R(K\x01" + shape
    array += dtype + b"K\x00tb\x89T" + struct.pack("<I", images.size) + images.tobytes() + b"tb"
    labelled = text(b"batch_label") + text(b"training batch") + text(b"labels") + b"](" + numbers + b"e"
    return b"\x80\x02}(" + labelled + text(b"data") + array + b"u."


def cifar_archive(arrays: Arrays, batch: Callable[[np.ndarray, np.ndarray], bytes] = python2_batch) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for number, name in enumerate(official.BATCHES):
            part = slice(2 * number, 2 * number + 2) if name != "test_batch" else slice(None)
            split = "test" if name == "test_batch" else "train"
            content = batch(arrays[f"x_{split}"][part], arrays[f"y_{split}"][part])
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        archive.addfile(tarfile.TarInfo("cifar-10-batches-py/readme.html"), io.BytesIO())
    return buffer.getvalue()


def compact_files(name: str) -> dict[str, bytes]:
    arrays = tiny(name)
    if name == "wikitext2":
        return {f"wikitext2/{split}.txt.xz": lzma.compress(text.encode()) for split, text in TEXTS.items()}
    if name == "har":
        return {"uci_har/uci_har.npz": npz(arrays)}
    files = {
        f"cifar10/train_{part + 1}.xz": differences(arrays["x_train"][2 * part : 2 * part + 2]) for part in range(5)
    }
    files["cifar10/test.xz"] = differences(arrays["x_test"])
    approx = {"approx_train": np.array([3], np.int32), "approx_test": np.array([], np.int32)}
    files["cifar10/labels.npz"] = npz({"train": arrays["y_train"], "test": arrays["y_test"], **approx})
    return files


def npz(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def differences(images: np.ndarray) -> bytes:
    planes = images.transpose(1, 0, 2, 3).copy()
    planes[0] -= planes[1]
    planes[2] -= planes[1]
    planes = np.diff(planes, axis=3, prepend=np.uint8(0))
    return lzma.compress(np.diff(planes, axis=2, prepend=np.uint8(0)).tobytes())


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def same(left: Arrays, right: Arrays) -> bool:
    return left.keys() == right.keys() and all(
        left[key].dtype == right[key].dtype and np.array_equal(left[key], right[key]) for key in left
    )


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own, no folder of the user's, and descriptions that fit the tiny data sets."""
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WHALEFL_DATA", raising=False)
    for name, known in list(DATASETS.items()):
        arrays = tiny(name)
        expected = {
            key: Expected(
                str(array.dtype),
                array.shape,
                tuple(np.bincount(array).tolist()) if key.startswith(("y_", "subject_")) else (),
            )
            for key, array in arrays.items()
        }
        extra = {key: each for key, each in known.arrays.items() if each.optional}
        md5 = {file: hashlib.md5(content).hexdigest() for file, content in official_files(name).items()}
        files = tuple(replace(file, md5=file.md5 and md5[file.name]) for file in known.files)
        words = len(vocabulary(arrays)) if name == "wikitext2" else 0
        tiny_one = replace(known, arrays={**expected, **extra}, files=files, words=words)
        monkeypatch.setitem(DATASETS, name, tiny_one)
    return tmp_path / "cache"


# Readers


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("inside", ["", "name"])
def test_official_files_are_read_from_a_folder_or_its_subfolder(
    name: str, inside: str, cache: Path, tmp_path: Path
) -> None:
    put(tmp_path / "data" / (name if inside else ""), official_files(name))
    dataset = load(name, tmp_path / "data")
    assert same(dataset.arrays, tiny(name))
    assert dataset.notes == ()
    assert all(array.flags.writeable and array.flags.c_contiguous for array in dataset.arrays.values())


@pytest.mark.parametrize("name", compact.LAYOUTS)
def test_compact_files_are_read_with_their_notes(name: str, cache: Path, tmp_path: Path) -> None:
    dataset = load(name, put(tmp_path / "data", compact_files(name)))
    assert same({key: dataset.arrays[key] for key in tiny(name)}, tiny(name))
    assert dataset.notes == compact.NOTES[name]
    if name == "cifar10":
        assert dataset.notes == ("93 of the 60,000 images are not bit-exact (JPEG copies)",)
        assert dataset.arrays["approx_train"].tolist() == [3]
    again = load(name, tmp_path / "data")
    assert same(again.arrays, dataset.arrays) and again.notes == dataset.notes


@pytest.mark.parametrize("folder", ["wikitext-2/", ""])
def test_wikitext_is_read_unpacked_too(folder: str, cache: Path, tmp_path: Path) -> None:
    files = {f"{folder}wiki.{split}.tokens": text.encode() for split, text in TEXTS.items()}
    assert same(load("wikitext2", put(tmp_path / "data", files)).arrays, tiny("wikitext2"))


@pytest.mark.parametrize("outer", ["UCI HAR Dataset.zip", "human+activity+recognition+using+smartphones.zip"])
def test_har_is_read_from_an_archive_within_an_archive(outer: str, cache: Path, tmp_path: Path) -> None:
    nested = zipped({"UCI HAR Dataset.names": b"", "UCI HAR Dataset.zip": official_files("har")["UCI HAR Dataset.zip"]})
    assert same(load("har", put(tmp_path / "data", {outer: nested})).arrays, tiny("har"))


def test_words_are_numbered_by_first_appearance_and_titles_found() -> None:
    arrays = encode(**TEXTS)
    words = vocabulary(arrays)
    assert words[:4] == ["<eos>", "=", "First", "The"] and words[-2:] == ["Vörös", "naïve"]
    train = [words[number] for number in arrays["tokens_train"]]
    assert train == TEXTS["train"].replace("\n", " <eos> ").split()
    assert [train[start : start + 2] for start in arrays["articles_train"]] == [["=", "First"], ["=", "Second"]]


def test_a_last_line_without_its_end_is_a_line() -> None:
    assert same(encode("a b\n", "a", "b\n"), encode("a b\n", "a\n", "b\n"))
    assert encode("", "", "")["articles_train"].size == 0


# The pickles


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("evil",)


def test_pickles_of_newer_pythons_are_read() -> None:
    images, labels = load_batch(pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}, protocol=4))
    assert images.shape == (2, 3072) and labels.tolist() == [1, 2]


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({b"data": Evil(), b"labels": []}),
        b"cos\nsystem\n(S'mkdir evil'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"cnumpy\nload\n(S'x.npy'\ntR.",
        b"cnumpy\nndarray\n(tR.",
        b"cnumpy\ndtype\n(S'O'\ntR.",
        b"cnumpy\ndtype\nN}S'_make'\nI1\ns\x86b.",
        pickle.dumps({b"data": np.zeros(2, object), b"labels": []}),
        pickle.dumps({b"data": np.zeros(2, np.float32), b"labels": []}),
        pickle.dumps({b"data": [1], b"labels": []}),
        pickle.dumps({b"labels": []}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [256]}),
        python2_batch(np.zeros((1, 3, 32, 32), np.uint8), np.zeros(1, np.uint8))[:-100],
        b"",
    ],
)
def test_other_pickles_are_refused(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="the pickle is refused"):
        load_batch(content)
    assert tree(tmp_path) == []


def test_an_evil_archive_is_one_sentence(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = cifar_archive(tiny("cifar10"), lambda images, labels: pickle.dumps(Evil()))
    data = put(tmp_path / "data", {"cifar-10-python.tar.gz": evil})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WhaleflError, match="posix.mkdir is not admitted"):
        load("cifar10", data)
    assert not (tmp_path / "evil").exists()


# Checks


def changed(arrays: Arrays, key: str, array: np.ndarray) -> Arrays:
    return {**arrays, key: array}


def test_what_does_not_fit_its_description_is_named(cache: Path) -> None:
    mnist, har, text = tiny("mnist"), tiny("har"), tiny("wikitext2")
    nan = har["x_test"].copy()
    nan[0, 0, 0] = np.nan
    cases = [
        (
            "mnist",
            changed(mnist, "x_train", mnist["x_train"][:-1]),
            r"x_train of mnist is 'uint8 \(5, 28, 28\)'; it must",
        ),
        ("mnist", changed(mnist, "x_test", mnist["x_test"].astype(np.int16)), "x_test of mnist is 'int16"),
        ("mnist", changed(mnist, "y_test", mnist["y_test"][::-1] // 2), "y_test of mnist holds the values 0, 1"),
        ("mnist", changed(mnist, "z", mnist["y_test"]), "mnist holds the arrays .* z; they must be x_train"),
        ("mnist", {"x_train": mnist["x_train"]}, "mnist holds the arrays x_train; they must be x_train, y_train"),
        ("har", changed(har, "x_test", nan), "x_test of har holds a value that is not a finite number"),
        ("wikitext2", changed(text, "vocab", np.frombuffer(b"a\nb", np.uint8)), "vocab of wikitext2 is"),
        ("wikitext2", changed(text, "tokens_test", text["tokens_test"] - 9), "tokens_test of wikitext2 is"),
        ("wikitext2", changed(text, "articles_train", text["articles_train"][::-1]), "articles_train of wikitext2 is"),
    ]
    for name, arrays, sentence in cases:
        with pytest.raises(WhaleflError, match=sentence):
            DATASETS[name].check(arrays)


def test_the_number_of_words_is_checked(cache: Path) -> None:
    description = replace(DATASETS["wikitext2"], words=7)
    with pytest.raises(WhaleflError, match="the number of words in wikitext2 is .*; it must be 7"):
        description.check(tiny("wikitext2"))


DAMAGED = [
    ("official", "mnist", "t10k-images-idx3-ubyte.gz"),
    ("official", "cifar10", "cifar-10-python.tar.gz"),
    ("official", "wikitext2", "wikitext-2-v1.zip"),
    ("official", "har", "UCI HAR Dataset.zip"),
    ("compact", "cifar10", "cifar10/train_3.xz"),
    ("compact", "cifar10", "cifar10/labels.npz"),
    ("compact", "wikitext2", "wikitext2/valid.txt.xz"),
    ("compact", "har", "uci_har/uci_har.npz"),
]


@pytest.mark.parametrize(("form", "name", "file"), DAMAGED)
@pytest.mark.parametrize("how", ["cut", "empty", "other"])
def test_damaged_files_are_one_sentence(form: str, name: str, file: str, how: str, cache: Path, tmp_path: Path) -> None:
    files = official_files(name) if form == "official" else compact_files(name)
    files[file] = {"cut": files[file][: len(files[file]) * 2 // 3], "empty": b"", "other": b"<html>no such file"}[how]
    with pytest.raises(WhaleflError) as caught:
        load(name, put(tmp_path / "data", files))
    assert f"data set {name} cannot be read from" in str(caught.value)
    assert f"`whalefl data fetch {name}`" in str(caught.value)
    assert not cache.exists()


def test_an_idx_file_of_another_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"\x00\x00\x0d\x01\x00\x00\x00\x00"))
    with pytest.raises(ValueError, match="not an IDX file of bytes"):
        official.read_idx(tmp_path / "a.gz")


# The store


def marked(name: str, mark: int) -> dict[str, bytes]:
    """The compact HAR with one value that tells where it came from."""
    arrays = tiny(name)
    arrays["x_train"][0, 0, 0] = mark
    return {"uci_har/uci_har.npz": npz(arrays)}


def mark_of(arrays: Arrays) -> int:
    return int(arrays["x_train"][0, 0, 0])


def test_places_are_searched_in_order(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache, marked("har", 3))
    assert mark_of(load("har").arrays) == 3
    monkeypatch.setenv("WHALEFL_DATA", str(put(tmp_path / "named", marked("har", 2))))
    assert mark_of(load("har").arrays) == 2
    given = put(tmp_path / "given", marked("har", 1))
    assert mark_of(load("har", given).arrays) == 1
    (given / "uci_har/uci_har.npz").unlink()
    assert mark_of(load("har", given).arrays) == 2
    assert [mark_of(load("har", tmp_path / "named").arrays), mark_of(load("har", cache).arrays)] == [2, 3]


def test_official_files_come_before_compact_ones(cache: Path, tmp_path: Path) -> None:
    put(tmp_path / "data", marked("har", 5))
    assert load("har", tmp_path / "data").notes == compact.NOTES["har"]
    put(tmp_path / "data", official_files("har"))
    assert load("har", tmp_path / "data").notes == ()


def test_the_canonical_form_is_written_once_and_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = put(tmp_path / "data", marked("har", 1))
    first = load("har", data)
    assert len(tree(cache)) == 1 and tree(cache)[0].startswith("har-")
    monkeypatch.setattr(compact, "READERS", {})
    assert same(load("har", data).arrays, first.arrays)


def test_a_changed_source_is_read_again(cache: Path, tmp_path: Path) -> None:
    data = put(tmp_path / "data", marked("har", 1))
    load("har", data)
    put(data, marked("har", 2))
    os.utime(data / "uci_har/uci_har.npz", ns=(1, 1))
    assert mark_of(load("har", data).arrays) == 2
    other = put(tmp_path / "other", marked("har", 3))
    assert mark_of(load("har", other).arrays) == 3
    assert mark_of(load("har", data).arrays) == 2
    assert len(tree(cache)) == 2


def test_what_lies_in_the_cache_becomes_the_plain_canonical_file(cache: Path) -> None:
    put(cache, compact_files("har"))
    load("har")
    (cache / "uci_har/uci_har.npz").unlink()
    assert load("har").notes == compact.NOTES["har"]
    assert tree(cache) == ["har.safetensors", "uci_har"]


def test_a_damaged_cache_is_made_again(cache: Path, tmp_path: Path) -> None:
    data = put(tmp_path / "data", marked("har", 1))
    load("har", data)
    kept = cache / tree(cache)[0]
    whole = kept.read_bytes()
    for content in (b"", whole[:-5], whole[:40], b"\xff" * 100):
        kept.write_bytes(content)
        assert mark_of(load("har", data).arrays) == 1
        assert kept.read_bytes() == whole


def test_a_damaged_canonical_file_is_passed_over_or_named(cache: Path, tmp_path: Path) -> None:
    data = put(tmp_path / "data", {**marked("har", 1), "har.safetensors": b"broken"})
    assert mark_of(load("har", data).arrays) == 1
    (data / "uci_har/uci_har.npz").unlink()
    with pytest.raises(WhaleflError, match="cannot be read from .*har.safetensors' in its canonical form"):
        load("har", data)


@pytest.mark.parametrize("why", ["a file in the way", "no write permission", "disk full"])
def test_a_cache_that_cannot_be_written_does_no_harm(
    why: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = put(tmp_path / "data", marked("har", 1))
    if why == "a file in the way":
        cache.write_bytes(b"")
    elif why == "no write permission":
        cache.mkdir(mode=0o500)
    else:
        monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert mark_of(load("har", data).arrays) == 1
    assert mark_of(load("har", data).arrays) == 1
    if why == "disk full":
        assert tree(cache) == []


def test_a_missing_data_set_says_where_and_how(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, named = tmp_path / "given", tmp_path / "named"
    given.mkdir()
    monkeypatch.setenv("WHALEFL_DATA", str(named))
    with pytest.raises(WhaleflError) as caught:
        load("cifar10", given)
    sentence = f"data set 'cifar10' is not in {given}, {named}, {cache}; `whalefl data fetch cifar10` gets it"
    assert str(caught.value) == sentence


def test_unknown_names_and_folders_are_named(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(WhaleflError, match="data set is 'mnits'.*did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(WhaleflError, match="data_dir is .*nowhere', which is not there"):
        load("mnist", tmp_path / "nowhere")


def test_the_cache_follows_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHALEFL_CACHE", raising=False)
    assert store.cache_dir().name == "whalefl" or "whalefl" in store.cache_dir().parts


# The commands


def test_the_list_names_place_form_and_notes(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = put(tmp_path / "data", {**compact_files("cifar10"), "wikitext2.safetensors": b"broken"})
    put(data / "mnist", official_files("mnist"))
    found = {entry.name: entry for entry in inventory(data)}
    assert (found["mnist"].where, found["mnist"].form) == (data / "mnist", "official")
    assert (found["cifar10"].form, found["cifar10"].notes) == ("compact", compact.NOTES["cifar10"])
    assert (found["har"].where, found["har"].form) == (None, "missing")
    assert found["wikitext2"].notes == ("its header cannot be read",)
    list_data(data)
    shown = capsys.readouterr().out
    assert "93 of the 60,000 images" in shown and "whalefl data fetch har" in shown and str(data / "mnist") in shown


# Fetching


class Server(ThreadingHTTPServer):
    """Serves bytes by name; a name in `cut` promises more than it sends."""

    daemon_threads = True
    files: dict[str, bytes]
    cut: set[str]
    asked: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = unquote(self.path[1:])
        self.server.asked.append(name)
        if name not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if name in self.server.cut else content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.files, server.cut, server.asked = {}, set(), []
    for name in DATASETS:
        for file, content in zip(DATASETS[name].files, official_files(name).values(), strict=True):
            server.files[file.url.rpartition("/")[2]] = content
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def urls(server: Server) -> dict[str, str]:
    return dict.fromkeys(DATASETS, server.url)


@pytest.mark.parametrize("name", DATASETS)
def test_fetching_leaves_checked_files_that_load(name: str, cache: Path, server: Server) -> None:
    fetch(name, cache, False, urls(server))
    assert tree(cache) == sorted([name, f"{name}.safetensors", *(f"{name}/{file}" for file in official_files(name))])
    assert same(load(name).arrays, tiny(name))
    asked = len(server.asked)
    fetch(name, cache, False, urls(server))
    assert len(server.asked) == asked, "files that are good already are kept"


def test_fetching_mends_files_and_replaces_an_older_form(cache: Path, server: Server) -> None:
    put(cache, compact_files("cifar10"))
    assert load("cifar10").notes
    put(cache / "cifar10", {"cifar-10-python.tar.gz": b"broken"})
    fetch("cifar10", cache, False, urls(server))
    assert load("cifar10").notes == ()
    assert (cache / "cifar10/cifar-10-python.tar.gz").read_bytes() == official_files("cifar10")[
        "cifar-10-python.tar.gz"
    ]


@pytest.mark.parametrize(
    ("name", "file", "how", "sentence"),
    [
        ("mnist", "t10k-labels-idx1-ubyte.gz", "changed", "does not have the published checksum; it must be md5:"),
        ("cifar10", "cifar-10-python.tar.gz", "changed", "does not have the published checksum; it must be md5:"),
        ("mnist", "t10k-labels-idx1-ubyte.gz", "cut", "cannot be downloaded"),
        ("wikitext2", "wikitext-2-v1.zip", "cut", "cannot be downloaded"),
        ("wikitext2", "wikitext-2-v1.zip", "changed", "the download of wikitext2 is not what is published"),
        (
            "har",
            "human+activity+recognition+using+smartphones.zip",
            "fewer",
            r"x_train of har is 'float32 \(4, 9, 128\)'",
        ),
        ("har", "human+activity+recognition+using+smartphones.zip", "absent", "cannot be downloaded .404"),
    ],
)
@pytest.mark.parametrize("folder", ["old", "new/deep"])
def test_a_bad_download_leaves_nothing_behind(
    name: str, file: str, how: str, sentence: str, folder: str, cache: Path, tmp_path: Path, server: Server
) -> None:
    fewer = {key: array[:-1] for key, array in tiny("har").items()}
    match how:
        case "changed":
            server.files[file] = server.files[file][:-8] + b"12345678"
        case "fewer":
            server.files[file] = zipped(har_texts(fewer))
        case "absent":
            del server.files[file]
        case _:
            server.cut.add(file)
    (tmp_path / "old").mkdir()
    before = tree(tmp_path)
    with pytest.raises(WhaleflError, match=sentence):
        fetch(name, tmp_path / folder, False, urls(server))
    assert tree(tmp_path) == before


def test_an_older_file_survives_a_bad_download(cache: Path, server: Server) -> None:
    put(cache, compact_files("har"))
    load("har")
    before = tree(cache)
    server.cut.add("human+activity+recognition+using+smartphones.zip")
    with pytest.raises(WhaleflError):
        fetch("har", cache, False, urls(server))
    assert tree(cache) == before and load("har").notes == compact.NOTES["har"]


def test_a_server_that_is_not_there_is_one_sentence(cache: Path) -> None:
    with pytest.raises(WhaleflError, match="http://127.0.0.1:9/wikitext-2-v1.zip cannot be downloaded"):
        fetch("wikitext2", cache, False, {"wikitext2": "http://127.0.0.1:9"})
    assert not cache.exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(cache: Path, server: Server) -> None:
    cache.write_bytes(b"")
    with pytest.raises(WhaleflError, match="folder is .*, which cannot be written"):
        fetch("har", cache / "deep", False, urls(server))
    assert cache.read_bytes() == b"" and server.asked == []


def test_the_command_fetches_into_the_cache(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = replace(DATASETS["har"].files[0], url=f"{server.url}human+activity+recognition+using+smartphones.zip")
    monkeypatch.setitem(DATASETS, "har", replace(DATASETS["har"], files=(file,)))
    fetch_data("har")
    shown = capsys.readouterr()
    assert f"har is in {cache}" in shown.out and "forbids commercial use" in shown.out
    assert shown.err == "", "no progress bar where there is no terminal"
    assert load("har").notes == ()


def test_a_terminal_gets_a_progress_bar(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    fetch("mnist", cache, True, urls(server))
    assert "train-images-idx3-ubyte.gz" in capsys.readouterr().err


# The real files


def real(name: str, form: str) -> None:
    """Skip unless $WHALEFL_DATA has the real files in this form."""
    if not os.environ.get("WHALEFL_DATA"):
        pytest.skip("WHALEFL_DATA is not set")
    if form not in [source.form for source in sources.sources_in(name, REAL)]:
        pytest.skip(f"{REAL} has no {form} files of {name}")


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


CIFAR10_PARTS = (
    "ab14ff7b2ce517d27f093af58e8e0992a627eb8620d74671a7a201f2bc74b04b",
    "4367f93a21976b7a2d3e7f1018ec6e053c6a4fffae6b9b925f7d9d6b37364bf6",
    "ffa34f83a1c845e950ac8ac6c88f9a17493e198a574978f3161eb43a6d467721",
    "1748450f55e24b680e135219e6470d963b645f5102a8d85aefbc9e158960664a",
    "11047e955182fb5003939d34eb2823e1a36246a3a2efa64179a7b256e0b10b15",
)
CIFAR10_TRAIN = "5d78d296514afc215fbac0176ae07bd32c8523eb12470c6f8527f22266e2e197"
CIFAR10_TEST = "1fe46ff47f5fb6c1b24f0b5448654cac0e0d3e1e0c16f9cbac842307814b553a"


@pytest.fixture
def real_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_real_mnist(real_cache: Path) -> None:
    real("mnist", "official")
    for file in DATASETS["mnist"].files:
        found = next(path for path in (REAL / file.name, REAL / "mnist" / file.name) if path.is_file())
        assert hashlib.md5(found.read_bytes()).hexdigest() == file.md5
    dataset = load("mnist")
    assert dataset.arrays["x_train"].mean() == pytest.approx(33.32, abs=0.01) and dataset.notes == ()


@pytest.mark.slow
def test_real_cifar10(real_cache: Path) -> None:
    real("cifar10", "compact")
    for _ in ("from the files", "from the cache"):
        arrays = load("cifar10").arrays
        assert [sha256(part) for part in np.split(arrays["x_train"], 5)] == list(CIFAR10_PARTS)
        assert (sha256(arrays["x_train"]), sha256(arrays["x_test"])) == (CIFAR10_TRAIN, CIFAR10_TEST)
        assert (arrays["approx_train"].size, arrays["approx_test"].size) == (73, 20)


def test_real_wikitext2(real_cache: Path) -> None:
    real("wikitext2", "compact")
    arrays = load("wikitext2").arrays
    words = vocabulary(arrays)
    assert len(words) == 33278
    titles = [
        " ".join(words[n] for n in arrays["tokens_train"][start : start + 8]) for start in arrays["articles_train"]
    ]
    assert all(title.startswith("= ") for title in titles)
    valid = " ".join(words[number] for number in arrays["tokens_valid"])
    with lzma.open(REAL / "wikitext2/valid.txt.xz", "rt", encoding="utf8") as file:
        assert valid == " ".join(file.read().replace("\n", " <eos> ").split())


def test_real_har(real_cache: Path) -> None:
    real("har", "compact")
    arrays = load("har").arrays
    assert sha256(arrays["x_train"]) == "48c7ece33a7602df115c43747ed2af97a50693d5d826406eb3a52e5f42f3d8a8"
    assert sha256(arrays["x_test"]) == "0552ed1ec17817aab492c3d1c27479ebe80f50f0f5a15c7ad783dc7b7cac02eb"
    assert len(np.unique(arrays["subject_train"])) == 21 and len(np.unique(arrays["subject_test"])) == 9
