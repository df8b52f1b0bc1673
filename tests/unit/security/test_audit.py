"""The audit log: a chain of lines, its verification, rotation, crashes, full disks."""

import json
import os
from pathlib import Path

import pytest

from nyala.common.errors import Corrupt, InvalidArgument
from nyala.security.audit import FILE_NAME, AuditLog, earlier_files, verify, verify_files


def filled(folder, lines=5, **arguments):
    log = AuditLog(str(folder), **arguments)
    for n in range(lines):
        log.append({"event": "call", "who": f"ann{n}"})
    log.close()
    return folder / FILE_NAME


def test_chain_continues_after_the_log_is_opened_again(tmp_path):
    filled(tmp_path)
    path = filled(tmp_path, 2)
    assert verify(str(path))[:2] == (0, 6)
    assert [json.loads(x)["number"] for x in path.read_text().splitlines()] == list(range(7))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["changed", "removed", "inserted", "swapped", "no json"])
def test_edit_of_a_line_is_found(tmp_path, damage):
    path = filled(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    if damage == "changed":
        lines[2] = lines[2].replace(b"ann2", b"bob2")
    elif damage == "removed":
        del lines[2]
    elif damage == "inserted":
        lines.insert(2, lines[2])
    elif damage == "swapped":
        lines[1], lines[2] = lines[2], lines[1]
    else:
        lines[2] = b"{}\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(Corrupt, match="changed"):
        verify(str(path))


def test_files_of_one_log_form_one_chain(tmp_path):
    path = filled(tmp_path, 20, file_bytes=500)
    files = [*map(str, earlier_files(str(tmp_path))), str(path)]
    assert len(files) > 3
    first, last, _ = verify_files(files)
    assert (first, last) == (0, 19)
    filled(tmp_path, 1, file_bytes=500)
    for wrong in (files[::-1], [files[0], *files[2:]]):
        with pytest.raises(Corrupt, match="does not continue"):
            verify_files(wrong)


def test_line_that_a_crash_cut_short_is_removed(tmp_path):
    path = filled(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"number":5,"bef')
    with pytest.raises(Corrupt):
        verify(str(path))
    filled(tmp_path, 1)
    assert verify(str(path))[:2] == (0, 5)


def test_full_disk_leaves_no_part_of_a_line(tmp_path, monkeypatch):
    log = AuditLog(str(tmp_path))
    log.append({"event": "one"})
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, raw: write(file, raw[:10]))
    with pytest.raises(OSError, match="No space"):
        log.append({"event": "two"})
    assert verify(str(tmp_path / FILE_NAME))[:2] == (0, 0), "also if the process ends now"
    monkeypatch.setattr(os, "write", write)
    log.append({"event": "three"})
    log.close()
    assert verify(str(tmp_path / FILE_NAME))[:2] == (0, 1)


def test_files_that_are_no_audit_log_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        verify(str(tmp_path / "none"))
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidArgument, match="no line"):
        verify(str(tmp_path / "empty"))


@pytest.mark.parametrize("failing", ["open", "rename", "second rename"])
def test_file_that_cannot_be_followed_by_a_new_one_stays_open(tmp_path, monkeypatch, failing):
    log, calls = AuditLog(str(tmp_path), file_bytes=1), []
    log.append({"event": "first"})
    name = failing.rpartition(" ")[2]
    real = getattr(os, name)

    def fails(*given):
        calls.append(given)
        if failing != "second rename" or len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(*given)

    for _ in range(2):
        calls.clear()
        monkeypatch.setattr(os, name, fails)
        with pytest.raises(OSError, match="No space"):
            log.append({"event": "refused"})
        monkeypatch.setattr(os, name, real)
        log.append({"event": "second"})
    log.close()
    again = AuditLog(str(tmp_path))
    again.append({"event": "last"})
    again.close()
    files = [*map(str, earlier_files(str(tmp_path))), str(tmp_path / FILE_NAME)]
    verify_files(files)
    lines = [json.loads(x)["event"] for f in files for x in Path(f).read_text().splitlines()]
    assert lines == ["first", "second", "second", "last"]


def test_part_of_a_line_that_cannot_be_removed_is_removed_before_the_next(tmp_path, monkeypatch):
    log, write, truncate = AuditLog(str(tmp_path)), os.write, os.ftruncate
    log.append({"event": "first"})

    def broken(*_given):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "write", lambda file, raw: write(file, raw[:10]))
    monkeypatch.setattr(os, "ftruncate", broken)
    with pytest.raises(OSError, match="No space"):
        log.append({"event": "refused"})
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "ftruncate", truncate)
    log.append({"event": "second"})
    log.close()
    assert verify(str(tmp_path / FILE_NAME))[:2] == (0, 1)


def test_line_is_durable_with_the_entry_of_its_file(tmp_path, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr("nyala.security.audit.sync_folder", synced.append)
    log = AuditLog(str(tmp_path), file_bytes=1)
    for number in range(3):
        log.append({"event": "line"})
        assert len(synced) == number + 1, "each line begins a file"
    log.close()
