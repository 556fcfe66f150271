"""The run folder: never half written, never over another one, and read back as it was."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from whalefl.errors import WhaleflError
from whalefl.runs import (
    CONFIG,
    METRICS,
    RUN,
    RunFolder,
    check_vacant,
    claim_vacant,
    vacant_folder,
    write_atomic,
    write_json,
)
from whalefl.values import CountShare, Coverage, Delay, DeviceReport, Energy, RoundRecord


def report(device: int) -> DeviceReport:
    return DeviceReport(
        device=device,
        kind="JetsonNano",
        level=2,
        share=0.25,
        loss=1.5,
        utility=None,
        fisher=0.1 + 0.2,  # 0.30000000000000004: every digit must survive
        known=Delay(computing_s=1.0, transmission_s=0.5),
        true=Delay(computing_s=2.0, transmission_s=0.25),
        unit_s=0.75,
        energy=Energy(computing_j=14.0, radio_j=0.6),
        link="lte",
        rate_mbps=17.3,
        slowdown=2.0,
        free_memory_mb=1024.0,
        bytes_up=1000,
        bytes_down=2000,
    )


def record(number: int) -> RoundRecord:
    return RoundRecord(
        round=number,
        time_s=10.5 * number,
        round_s=10.5,
        accuracy=None if number % 2 else 0.5,
        loss=None,
        metrics={} if number % 2 else {"perplexity": 12.5},
        train_loss=2.25,
        threshold=0.125,
        preferred_s=None,
        coverage=Coverage(2, 0.25, 1.5, 3, (CountShare(0, 0.25, None), CountShare(2, 0.75, 4.0))),
        devices=(report(0), report(7)),
    )


def new_folder(path: Path) -> RunFolder:
    return RunFolder.create(path, 'task = "digits"\n', "whalefl run digits", "1.2.3")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# --- atomic files


@pytest.mark.parametrize("interruption", [OSError("disk full"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise interruption

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(type(interruption)):
        write_atomic(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert files(tmp_path) == {"table.json"}


def test_a_first_write_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="power cut"):
        write_atomic(tmp_path / "report.md", b"half")
    assert files(tmp_path) == set()


def test_the_old_content_stands_until_all_of_the_new_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old")
    seen: list[tuple[bytes, bytes]] = []
    replace_file = os.replace

    def watch(source: str, target: Path) -> None:
        seen.append((Path(source).read_bytes(), Path(target).read_bytes()))
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", watch)
    write_atomic(path, b"new")
    assert seen == [(b"new", b"old")]
    assert path.read_bytes() == b"new"
    assert files(tmp_path) == {"run.json"}


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    write_atomic(tmp_path / "report.md", b"text")
    assert (tmp_path / "report.md").stat().st_mode & 0o777 == 0o644


def test_json_comes_back_as_it_was_and_ends_with_a_newline(tmp_path: Path) -> None:
    content = {"rows": [1, 2.5, None], "sign": "≥"}
    write_json(tmp_path / "table.json", content)
    text = (tmp_path / "table.json").read_text(encoding="utf8")
    assert json.loads(text) == content
    assert text.endswith("}\n")


# --- where a run may go


def test_a_new_run_leaves_config_meta_and_an_empty_list_of_rounds(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "deep" / "down" / "run")
    assert files(folder.path) == {CONFIG, RUN, METRICS}
    assert (folder.path / CONFIG).read_text() == 'task = "digits"\n'
    meta = folder.meta()
    assert (meta["version"], meta["command"], meta["status"]) == ("1.2.3", "whalefl run digits", "waiting")
    assert meta["schema"] == 1
    assert list(folder.records()) == []


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    check_vacant(tmp_path)
    assert new_folder(tmp_path).path == tmp_path


def test_a_folder_that_holds_anything_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(WhaleflError) as caught:
        new_folder(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
    assert files(tmp_path) == {"thesis.txt"}
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_finished_run_is_not_written_over(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run")
    folder.append(record(1))
    with pytest.raises(WhaleflError, match="name a new folder$"):
        new_folder(tmp_path / "run")
    assert len(list(folder.records())) == 1


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_text("")
    with pytest.raises(WhaleflError, match="already exists"):
        check_vacant(path)


def test_the_next_vacant_name_counts_up_over_those_that_exist(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "digits.v1"
    assert claim_vacant(path) == path and path.is_dir()
    assert claim_vacant(path) == path.with_name("digits.v1-2")
    path.with_name("digits.v1-3").write_text("a file is in the way too")
    path.with_name("digits.v1-5").mkdir()
    assert claim_vacant(path) == path.with_name("digits.v1-4")


def test_a_new_folder_of_which_nothing_came_goes_again(tmp_path: Path) -> None:
    default = tmp_path / "runs" / "digits"
    with pytest.raises(ZeroDivisionError), vacant_folder(None, default):
        raise ZeroDivisionError
    assert files(tmp_path) == set()
    with pytest.raises(ZeroDivisionError), vacant_folder(None, default) as folder:
        (folder / "started").touch()
        raise ZeroDivisionError
    assert files(default) == {"started"}
    (tmp_path / "mine").mkdir()
    with pytest.raises(ZeroDivisionError), vacant_folder(tmp_path / "mine", default):
        raise ZeroDivisionError
    assert files(tmp_path) == {"runs", "mine"}


# --- records


def plain(value: RoundRecord) -> dict[str, Any]:
    """A record as JSON has it: dictionaries and lists."""

    def lists(inner: Any) -> Any:
        if isinstance(inner, dict):
            return {key: lists(content) for key, content in inner.items()}
        return [lists(content) for content in inner] if isinstance(inner, list | tuple) else inner

    return lists(asdict(value))


def test_records_come_back_whole_and_in_order(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run")
    rounds = [record(number) for number in (1, 2, 3)]
    for one in rounds:
        folder.append(one)
    assert list(RunFolder(folder.path).records()) == [plain(one) for one in rounds]
    assert len((folder.path / METRICS).read_text().splitlines()) == 3


def test_a_record_holds_what_a_reader_needs_under_plain_names(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run")
    folder.append(record(2))
    (read,) = folder.records()
    assert (read["round"], read["time_s"], read["accuracy"], read["loss"]) == (2, 21.0, 0.5, None)
    assert read["metrics"] == {"perplexity": 12.5}
    first = read["devices"][0]
    assert first["known"] == {"computing_s": 1.0, "transmission_s": 0.5}
    assert first["true"] == {"computing_s": 2.0, "transmission_s": 0.25}
    assert first["fisher"] == 0.30000000000000004
    assert read["coverage"]["counts"] == [
        {"devices": 0, "share": 0.25, "classes": None},
        {"devices": 2, "share": 0.75, "classes": 4.0},
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused_and_leaves_no_trace(tmp_path: Path, value: float) -> None:
    folder = new_folder(tmp_path / "run")
    folder.append(record(1))
    with pytest.raises(ValueError, match="JSON"):
        folder.append(replace(record(2), train_loss=value))
    assert [read["round"] for read in folder.records()] == [1]


def test_finishing_changes_the_status_and_nothing_else(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run")
    before = folder.meta()
    folder.append(record(1))
    folder.mark("interrupted")
    assert folder.meta() == {**before, "status": "interrupted"}
    assert files(folder.path) == {CONFIG, RUN, METRICS}
    assert len(list(folder.records())) == 1
