"""List of the certificates of users in the folder of an authority."""

import json
import stat

import pytest

from nyala.common.errors import Corrupt, NotFound
from nyala.security import issue
from nyala.security.authorities import issued
from nyala.security.authorities.bundle import key_id
from nyala.security.authority import load
from nyala.security.identity import identity_of_pem
from nyala.security.principal import AccessRole


def test_each_certificate_of_a_user_is_listed_before_its_files_exist(tmp_path, monkeypatch):
    folder, out = tmp_path / "ca", tmp_path / "ann"
    admin = issue.initialise(str(folder))
    files = issue.user(str(folder), str(out), "ann", AccessRole.READER, days=2)
    issue.server(str(folder), str(tmp_path / "server"), ["db1"])
    entries = issued.load(str(folder))
    assert [e.user for e in entries] == ["admin", "ann"], "servers report theirs"
    for path, entry in zip((admin.cert, files.cert), entries, strict=True):
        with open(path, "rb") as file:
            known = identity_of_pem(file.read())
        assert entry.serial == f"{known.serial:x}"
        assert (entry.issued_s, entry.not_after) == (known.issued_s, known.ends_s)
        assert entry.authority == key_id(load(str(folder)).certificate)
    assert stat.S_IMODE((folder / issued.FILE).stat().st_mode) == 0o600
    assert not (out / issued.FILE).exists()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(issued, "add", full)
    with pytest.raises(OSError, match="No space"):
        issue.user(str(folder), str(tmp_path / "bob"), "bob", AccessRole.READER)
    assert not (tmp_path / "bob").exists()


def test_line_that_was_interrupted_is_of_no_certificate(tmp_path):
    folder = str(tmp_path / "ca")
    issue.initialise(folder)
    path = tmp_path / "ca" / issued.FILE
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert [e.user for e in issued.load(folder)] == ["admin"]
    issue.user(folder, str(tmp_path / "ann"), "ann", AccessRole.READER)
    assert [e.user for e in issued.load(folder)] == ["admin", "ann"]


@pytest.mark.parametrize("line", ["{}", "[1]", "x", json.dumps({"serial": "1f"}), "null"])
def test_malformed_line_is_named(tmp_path, line):
    (tmp_path / issued.FILE).write_text(line + "\n")
    with pytest.raises(Corrupt, match=r"line 1 of .*issued is not the entry .*; restore"):
        issued.load(str(tmp_path))


def test_folder_without_a_list_is_no_empty_list(tmp_path):
    with pytest.raises(NotFound, match="is not the folder of a certificate authority"):
        issued.load(str(tmp_path))
    issue.initialise(str(tmp_path / "ca"))
    (tmp_path / "ca" / issued.FILE).unlink()
    with pytest.raises(NotFound, match=r"make an empty list: touch .*issued"):
        issued.load(str(tmp_path / "ca"))
