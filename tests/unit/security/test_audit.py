"""The audit log: a chain of lines, its verification, rotation, crashes, full disks."""

import json
import os

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
