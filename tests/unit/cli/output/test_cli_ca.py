"""`nyala ca`: the lists of certificates of users that it sends, and what it says of those that are left."""

import json

import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from nyala.cli.security import cert
from nyala.operate import run
from nyala.security import issue
from nyala.security.authority import load
from nyala.security.principal import AccessRole
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from tests.unit.security.certificates import authority


@pytest.fixture
def asked(monkeypatch):
    """Requests to the leader master, to which nobody but users is behind."""
    found = []

    def answer(masters, method, request):
        found.append((method, request))
        if method is not methods.AUTHORITY_STATUS:
            return method.decode_response(b"")
        pem = load(authority()).certificate_pem
        return pb.AuthorityStatusResponse(
            certificates=[pem, pem], issuing_us=1, users=request.issued.certificates
        )

    monkeypatch.setattr(run, "ask_leader", answer)
    monkeypatch.setattr(run, "change_at_leader", answer)
    monkeypatch.setattr(cert, "renew_own", lambda masters: "")
    for name in ("NYALA_CA", "NYALA_CERT", "NYALA_KEY", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def folder(tmp_path):
    """The folder of an authority that has issued the certificate of ann."""
    made = tmp_path / "authority"
    issue.initialise(str(made))
    issue.user(str(made), str(tmp_path / "ann"), "ann", AccessRole.READER)
    return made


def ca(*words):
    return CliRunner().invoke(app, ["ca", *words, "--masters", "127.0.0.1:1"])


def test_lists_of_the_folders_are_sent_and_who_is_left_is_named(asked, folder):
    shown = ca("show", "--dir", str(folder))
    assert "not renewed: certificate of ann, serial number" in shown.output
    assert "next: nyala cert renew by these users, and nyala ca retire" in shown.output
    found = json.loads(ca("show", "--dir", str(folder), "--format", "json").stdout)
    assert [u["user"] for u in found["users"]] == ["admin", "ann"]
    assert ca("retire", "--dir", str(folder), "--dir", str(folder)).exit_code == 0
    method, request = asked[-1]
    assert (method, request.force) == (methods.RETIRE_AUTHORITY, False)
    assert [c.user for c in request.issued.certificates] == ["admin", "ann"] * 2


def test_without_a_folder_the_list_is_not_known_unless_it_is_beside_the_certificate(
    asked, folder, monkeypatch, tmp_path
):
    shown = ca("show")
    assert "are not checked: name the authority's folder with --dir" in shown.output
    assert "nobody" not in shown.output
    ca("retire")
    assert not asked[-1][1].HasField("issued"), "the leader master refuses it"
    refused = ca("retire", "--dir", str(tmp_path))
    assert (refused.exit_code, "not the folder of a certificate" in refused.output) == (5, True)
    for name, file in (("CA", "ca.crt"), ("CERT", "admin.crt"), ("KEY", "admin.key")):
        monkeypatch.setenv(f"NYALA_{name}", str(folder / file))
    ca("retire")
    assert [c.user for c in asked[-1][1].issued.certificates] == ["admin", "ann"]


def test_rotation_is_aborted_by_a_flag(asked):
    assert "the replacement is aborted" in ca("rotate", "--abort").output
    assert [method for method, _ in asked] == [methods.ABORT_AUTHORITY]
