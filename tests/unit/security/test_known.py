"""Credentials that are noted for a user, by address: found by later processes, never of another user."""

import os
import stat

import pytest

from nyala.client import credentials
from nyala.security import known
from nyala.security.files import VARIABLES, CredentialFiles
from nyala.security.principal import AccessRole
from tests.unit.security.certificates import server_files, user_files

ADDRESSES = ["127.0.0.1:7051", "127.0.0.1:7151"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of a user who has nothing noted."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "data" / "nyala" / "credentials"


def files():
    return user_files(AccessRole.ADMIN)


def test_noted_credentials_are_found_by_any_address_of_the_cluster(folder):
    assert known.record(ADDRESSES, files()) == folder
    for address in (*ADDRESSES, "localhost:7051"):
        found = known.noted(["127.0.0.1:1", address])
        assert found is not None
        assert found == files()
        assert found.source.startswith(str(folder))
    assert known.noted(["127.0.0.1:7052"]) is None


def test_later_cluster_at_an_address_replaces_the_earlier_one():
    known.record(ADDRESSES, files())
    known.record(ADDRESSES[:1], server_files())
    assert known.noted(ADDRESSES) == server_files()
    known.forget(ADDRESSES, files())  # the earlier one ends
    assert known.noted(ADDRESSES) == server_files()
    known.forget(ADDRESSES)
    assert known.noted(ADDRESSES) is None


def test_what_an_ended_cluster_left_counts_as_nothing(tmp_path, folder):
    gone = CredentialFiles(*(str(tmp_path / name) for name in ("ca.crt", "a.crt", "a.key")))
    known.record(ADDRESSES, gone)
    assert known.noted(ADDRESSES) is None
    for content in ("", "[]", '{"ca": 1}', '{"ca": "\\u0000", "cert": "", "key": ""}'):
        (folder / f"{ADDRESSES[0]}.json").write_text(content)
        assert known.noted(ADDRESSES) is None, content


@pytest.mark.parametrize(
    "address", ["", "x" * 300 + ":1", "../../etc/passwd:1", "a\0b:1", "[::1]:1"]
)
def test_no_address_leads_out_of_the_folder(address):
    assert known.noted([address]) is None


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_folder_and_files_are_private_whatever_the_umask(folder, umask):
    """Abuse case 30: a process that starts with umask 0."""
    before = os.umask(umask)
    try:
        known.record(ADDRESSES, files())
    finally:
        os.umask(before)
    for place in (folder, *folder.parents[:2]):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {0o600}


@pytest.mark.parametrize("shared", ["folder", "parent"])
def test_folder_that_others_may_write_to_is_not_read(folder, shared):
    """Otherwise another user could have clients trust an authority of theirs."""
    known.record(ADDRESSES, files())
    (folder if shared == "folder" else folder.parent).chmod(0o777)
    assert known.noted(ADDRESSES) is None


def test_user_without_home_has_a_folder_below_the_temporary_one(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(blocked / "below"))
    place = tmp_path / f"nyala-{os.geteuid()}" / "credentials"
    assert known.record(ADDRESSES, files()) == place
    assert known.noted(ADDRESSES) == files()


def test_nothing_is_noted_where_no_folder_can_be_written_to(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(blocked / "below"))
    monkeypatch.setattr("tempfile.tempdir", str(blocked))
    assert known.record(ADDRESSES, files()) is None
    assert known.noted(ADDRESSES) is None


def role_of(masters: str) -> AccessRole:
    """Return the role of a client that was given nothing."""
    found = credentials.credentials_for(masters)
    assert found is not None
    return found.principal.role


def test_arguments_come_first_then_the_environment_then_what_is_noted(monkeypatch):
    masters = "127.0.0.1:7051,127.0.0.1:7151"
    assert credentials.credentials_for(masters) is None
    known.record(ADDRESSES, user_files(AccessRole.READER))
    assert role_of(masters) is AccessRole.READER
    for variable, value in user_files(AccessRole.OWNER).variables.items():
        monkeypatch.setenv(variable, value)
    assert role_of(masters) is AccessRole.OWNER
    monkeypatch.setattr("nyala.client.credentials._given", {})
    credentials.remember("127.0.0.1:7151", files())
    assert role_of(masters) is AccessRole.ADMIN
