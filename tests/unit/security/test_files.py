"""Certificates in folders: their permissions, what is refused, and files that are replaced."""

import datetime
import os
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from cryptography import x509

from nyala.common.errors import AlreadyPresent, Corrupt, InvalidArgument, NotFound
from nyala.security import authority as authorities
from nyala.security import credentials as credentials_module
from nyala.security import issue, verify
from nyala.security.credentials import Credentials
from nyala.security.describe import describe
from nyala.security.files import (
    ENVIRONMENT,
    CredentialFiles,
    files_of_environment,
    joined_files,
    named_files,
)
from nyala.security.principal import AccessRole
from tests.unit.security.certificates import authority, server_files, user_files
from tests.waiting import later


def copied(files, folder):
    found = [shutil.copy(path, folder) for path in (files.ca, files.cert, files.key)]
    return CredentialFiles(*map(str, found))


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_files_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        issue.initialise(str(tmp_path / "ca"))
        issue.user(str(tmp_path / "ca"), str(tmp_path / "out"), "ann", AccessRole.READER)
    finally:
        os.umask(before)
    folders = [tmp_path / "ca", tmp_path / "out"]
    assert [mode(f) for f in folders] == [0o700, 0o700]
    files = [f for folder in folders for f in folder.iterdir()]
    assert len(files) == 8
    assert {mode(f) for f in files} == {0o600}


def test_issued_certificate_says_who_may_do_what_on_which_hosts():
    server, reader = Credentials(server_files()), Credentials(user_files(AccessRole.READER))
    assert server.principal.role is AccessRole.SERVER
    assert (reader.principal.role, reader.principal.name) == (AccessRole.READER, "reader")
    assert server.principal.cluster == reader.principal.cluster
    shown = describe(server_files().cert)
    assert (shown["role"], shown["hosts"]) == ("server", "localhost 127.0.0.1")
    assert describe(server_files().ca)["holder"] == "certificate authority"


def test_authority_is_never_replaced(tmp_path):
    issue.initialise(str(tmp_path))
    before = (tmp_path / "ca.key").read_bytes()
    with pytest.raises(AlreadyPresent, match="choose another folder"):
        issue.initialise(str(tmp_path))
    assert (tmp_path / "ca.key").read_bytes() == before


def test_key_of_the_authority_is_not_put_beside_certificates():
    for make in (
        lambda: issue.server(authority(), authority(), ["h"]),
        lambda: issue.user(authority(), authority(), "ann", AccessRole.READER),
    ):
        with pytest.raises(AlreadyPresent, match="must not be copied"):
            make()


@pytest.mark.parametrize("host", ["", "a b", "a:7051", "-x." + "y" * 70, "a/b", "10.0.0.0/8"])
def test_host_that_no_certificate_can_carry_is_refused(host, tmp_path):
    with pytest.raises(InvalidArgument):
        issue.server(authority(), str(tmp_path), ["fine", host])
    with pytest.raises(InvalidArgument, match="name the hosts"):
        issue.server(authority(), str(tmp_path), [])
    assert list(tmp_path.iterdir()) == []


def test_days_are_bounded_and_no_certificate_outlives_its_authority(tmp_path):
    for days in (0, -1, 4000):
        with pytest.raises(InvalidArgument, match="1 to 3650 days"):
            issue.server(authority(), str(tmp_path / "out"), ["h"], days)
    issue.initialise(str(tmp_path / "short"), days=3)
    files = issue.server(str(tmp_path / "short"), str(tmp_path / "out"), ["h"], 300)
    certificate = x509.load_pem_x509_certificate(Path(files.cert).read_bytes())
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert left <= datetime.timedelta(days=3)


def test_damaged_or_missing_authority_is_named(tmp_path):
    with pytest.raises(NotFound, match="nyala init"):
        authorities.load(str(tmp_path))
    shutil.copytree(authority(), tmp_path / "ca")
    shutil.copy(Path(authority("other"), "ca.key"), tmp_path / "ca" / "ca.key")
    with pytest.raises(Corrupt, match="is not the key of"):
        authorities.load(str(tmp_path / "ca"))
    (tmp_path / "ca" / "ca.key").write_text("nothing")
    with pytest.raises(Corrupt, match="cannot be read"):
        authorities.load(str(tmp_path / "ca"))


def test_certificate_of_another_authority_is_refused(tmp_path):
    files = copied(server_files(), tmp_path)
    shutil.copy(Path(authority("other"), "ca.crt"), files.ca)
    with pytest.raises(InvalidArgument, match="was not issued by a certificate authority in"):
        Credentials(files)


def test_key_of_another_certificate_is_refused(tmp_path):
    files = copied(server_files(), tmp_path)
    shutil.copy(user_files(AccessRole.READER).key, files.key)
    with pytest.raises(InvalidArgument, match="is not the private key"):
        Credentials(files)


def test_key_that_others_may_read_is_refused(tmp_path):
    files = copied(server_files(), tmp_path)
    os.chmod(files.key, 0o644)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        Credentials(files)
    os.chmod(files.key, 0o640)
    assert Credentials(files).principal.role is AccessRole.SERVER


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
def test_missing_file_is_named(name, tmp_path):
    files = copied(server_files(), tmp_path)
    os.unlink(getattr(files, name))
    with pytest.raises(InvalidArgument, match="No such file"):
        Credentials(files)


def test_file_that_is_no_certificate_is_named(tmp_path):
    files = copied(server_files(), tmp_path)
    Path(files.cert).write_text("hello")
    with pytest.raises(InvalidArgument, match="not a certificate in PEM form"):
        Credentials(files)
    with pytest.raises(InvalidArgument, match="not a certificate in PEM form"):
        describe(files.cert)


def test_certificate_is_refused_before_and_after_its_time(monkeypatch):
    for days in (-30, 400):

        class Shifted(datetime.datetime):
            """A clock that is wrong by some days."""

            @classmethod
            def now(cls, tz=None, days=days):
                return super().now(tz) + datetime.timedelta(days=days)

        monkeypatch.setattr(verify, "datetime", Shifted)
        with pytest.raises(InvalidArgument, match=r"is valid from .* make a new one"):
            Credentials(server_files())


def test_server_that_was_off_for_too_long_learns_how_to_get_a_certificate(tmp_path):
    """It does not start, and cannot renew by itself what has ended."""
    name, folder = "tserver-" + "7" * 32, str(tmp_path / "certs")
    issue.local_server(authority(), folder, name, ["10.0.0.6", "db2"], signs=False)
    files = joined_files(str(tmp_path))
    assert files is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(verify, "datetime", Later)
        with pytest.raises(InvalidArgument) as refused:
            Credentials(files)
    said = refused.value.message
    assert f"nyala cert server --name {name} --host db2 --host 10.0.0.6 --dir AUTHORITY" in said
    assert f"into {files.cert}, or correct the clock" in said


class Later(datetime.datetime):
    """A clock after the end of each certificate."""

    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(days=4_000)


def test_replaced_files_are_read_again_once_they_belong_together(tmp_path):
    files = copied(user_files(AccessRole.READER), tmp_path)
    found = Credentials(files)
    assert not found.refresh()
    new = issue.user(authority(), str(tmp_path / "new"), "reader", AccessRole.WRITER)
    shutil.copy(new.cert, files.cert)
    assert not found.refresh()  # its key is still the old one
    assert found.principal.role is AccessRole.READER
    shutil.copy(new.key, files.key)
    assert found.refresh()
    assert (found.principal.role, found.version) == (AccessRole.WRITER, 1)
    assert not found.refresh()


def test_all_three_files_are_named_or_none(monkeypatch):
    assert named_files("", None, "") is None
    with pytest.raises(InvalidArgument, match="cert and key is missing"):
        named_files("ca.crt", "", "")
    assert files_of_environment({}) is None
    with pytest.raises(InvalidArgument, match="NYALA_CA, NYALA_CERT, NYALA_KEY"):
        files_of_environment({"NYALA_KEY": "k"})
    for variable, value in server_files().variables.items():
        monkeypatch.setenv(variable, value)
    found = files_of_environment()
    assert found == server_files()
    assert found.source == ENVIRONMENT


def replaced(files, other):
    """Replace the certificate and key of a process, as in one file that is renamed."""
    for before, after in ((files.cert, other.cert), (files.key, other.key)):
        shutil.copy(after, before)


def test_files_that_are_replaced_while_they_are_read_are_read_again(tmp_path, monkeypatch):
    """So what a server says of its certificate, and what it proves in handshakes, are one certificate."""
    files = copied(server_files(), tmp_path)
    known, read = Credentials(files), credentials_module.read_files

    def read_and_replace(asked):
        found = read(asked)
        monkeypatch.undo()
        replaced(files, user_files(AccessRole.WRITER))
        return found

    replaced(files, user_files(AccessRole.READER))
    monkeypatch.setattr(credentials_module, "read_files", read_and_replace)
    assert not known.refresh()
    assert (known.principal.role, known.version) == (AccessRole.SERVER, 0)
    assert known.refresh()
    assert (known.principal.role, known.version) == (AccessRole.WRITER, 1)


def test_threads_that_ask_at_once_read_the_files_one_after_the_other(tmp_path, monkeypatch):
    """gRPC asks in threads of its own; contexts that two threads change have a key of another certificate."""
    files = copied(server_files(), tmp_path)
    known, read = Credentials(files), credentials_module.read_files
    inside, go_on, readers = threading.Event(), threading.Event(), []

    def slow(asked):
        readers.append(threading.get_ident())
        inside.set()
        assert go_on.wait(later(30))
        return read(asked)

    monkeypatch.setattr(credentials_module, "read_files", slow)
    replaced(files, user_files(AccessRole.READER))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(known.refresh)
        assert inside.wait(later(30))
        second = threads.submit(known.refresh)
        assert not wait([second], timeout=0.2).done, "it waits for the first"
        go_on.set()
        assert (first.result(later(30)), second.result(later(30))) == (True, False)
    assert len(readers) == 1
    assert (known.principal.role, known.version) == (AccessRole.READER, 1)
