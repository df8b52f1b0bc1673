"""Logins of processes that have a password: private, renewed, and at a trusted authority only."""

import asyncio
import contextlib
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import uvloop

from nyala.client import credentials
from nyala.client.login import session
from nyala.client.login.exchange import Issued, Proof
from nyala.client.login.session import LoginSession, session_files
from nyala.common.errors import InvalidArgument, Unauthenticated, Unavailable
from nyala.security import known
from nyala.security.accounts.attempts import RETRY_AFTER
from nyala.security.authority import load
from nyala.security.credentials import Credentials
from nyala.security.files import (
    CA_VARIABLE,
    LOGIN_VARIABLE,
    PASSWORD_VARIABLE,
    USER_VARIABLE,
    VARIABLES,
)
from nyala.security.identity import identity_of_pem
from nyala.security.principal import AccessRole
from nyala.security.signing_request import new_request, public_key_of
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.tls.join_port import JoinPort
from tests.unit.security.certificates import authority, server, server_files

PROOF = Proof("ann", "correct horse battery")


@pytest.fixture(autouse=True)
def nothing_noted(tmp_path, monkeypatch):
    """The environment of a user who has nothing noted, in a process without logins."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(session, "_sessions", {})
    monkeypatch.setattr(credentials, "_given", {})
    for variable in (*VARIABLES, USER_VARIABLE, PASSWORD_VARIABLE, LOGIN_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


def signed(csr, hours=12):
    key, valid = public_key_of(csr), timedelta(hours=hours)
    return load(authority()).sign(key, AccessRole.READER, "ann", (), valid)


def issued():
    key, csr = new_request()
    return Issued(load(authority()).certificate_pem, signed(csr), key, ())


def test_certificate_of_a_process_is_private_and_replaced_after_two_thirds_of_its_life():
    proofs = []

    def log_in(proof):
        proofs.append(proof)
        return issued()

    made = LoginSession(PROOF, log_in)
    used = Credentials(made.files)
    folder = Path(made.files.cert).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in folder.iterdir()} == {0o600}
    first = identity_of_pem(used.pem.cert)
    made.renew_if_due(first.renewal_s - 1)
    assert not used.refresh()
    made.renew_if_due(first.renewal_s)
    assert used.refresh()
    assert identity_of_pem(used.pem.cert).serial != first.serial
    assert proofs == [PROOF, PROOF]


def test_renewal_that_fails_leaves_the_present_certificate():
    answers = [issued()]

    def log_in(proof):
        if not answers:
            raise Unavailable("no leader")
        return answers.pop()

    made = LoginSession(PROOF, log_in)
    before = Path(made.files.cert).read_bytes()
    with pytest.raises(Unavailable):
        made.renew_if_due(identity_of_pem(before).ends_s)
    assert Path(made.files.cert).read_bytes() == before


@pytest.mark.parametrize(
    ("error", "continues"),
    [
        (Unavailable("no leader"), True),
        (Unauthenticated("too many failed logins", {RETRY_AFTER: "60000"}), True),
        (Unauthenticated("the password is wrong"), False),
    ],
    ids=["no leader", "others guess", "wrong password"],
)
def test_renewal_is_given_up_only_if_the_login_itself_is_refused(error, continues):
    """A user of whom others guess passwords has to wait, and would lose all processes in some hours."""
    answers = [error, issued()]

    def log_in(proof):
        found = answers.pop()
        if isinstance(found, Exception):
            raise found
        return found

    made = LoginSession(PROOF, log_in)
    ends_s = identity_of_pem(Path(made.files.cert).read_bytes()).ends_s
    pause_s = made.look(ends_s)
    assert (pause_s is not None) is continues
    answers.append(issued())
    assert made.look(ends_s) is not None


@contextlib.contextmanager
def port():
    """A join port in a thread; yields its address and the requests that arrive."""
    requests, ready, over = [], threading.Event(), threading.Event()
    addresses = []

    async def answer(request):
        requests.append(request)
        return pb.JoinResponse(certificate=signed(request.csr))

    async def serve():
        made = JoinPort(server(), answer)
        addresses.append(await made.listen("127.0.0.1:0"))
        ready.set()
        await asyncio.get_running_loop().run_in_executor(None, over.wait)
        await made.close()

    thread = threading.Thread(target=uvloop.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield addresses[0], requests
    finally:
        over.set()
        thread.join()


def test_password_is_not_sent_before_the_authority_is_known(monkeypatch):
    masters = ["127.0.0.1:7051"]
    with port() as (address, requests):
        monkeypatch.setenv(LOGIN_VARIABLE, address)
        with pytest.raises(InvalidArgument, match="the password was not sent"):
            session_files(masters, "ann", "correct horse battery")
        assert requests == []
        files = session_files(masters, "ann", "correct horse battery", server_files().ca)
        assert Credentials(files).principal.name == "ann"
        assert session_files(masters, "ann", "correct horse battery") == files
        assert len(requests) == 1, "one login for all clients of a process"


def files_for(masters):
    found = credentials.credentials_for(masters)
    return None if found is None else found.files


def test_client_without_arguments_logs_in_as_the_environment_says(monkeypatch):
    masters = "127.0.0.1:7051"
    known.record([masters], server_files())
    assert files_for(masters) == server_files()
    with port() as (address, _):
        monkeypatch.setenv(LOGIN_VARIABLE, address)
        monkeypatch.setenv(USER_VARIABLE, "ann")
        assert files_for(masters) == server_files()
        monkeypatch.setenv(PASSWORD_VARIABLE, "correct horse battery")
        monkeypatch.setenv(CA_VARIABLE, server_files().ca)
        found = credentials.credentials_for(masters)
    assert found is not None
    assert found.principal.name == "ann"


@pytest.mark.parametrize(
    "given",
    [("u", None, None), (None, "p", None), ("u", "", None), ("u", "p", "cert")],
)
def test_user_and_password_belong_together_and_come_without_a_certificate(given):
    user, password, cert = given
    with pytest.raises(InvalidArgument, match="belong together"):
        credentials.given_files("127.0.0.1:7051", None, cert, None, user, password)


def test_client_logs_in_at_the_address_given_before_that_of_the_environment(monkeypatch):
    monkeypatch.setenv(LOGIN_VARIABLE, "127.0.0.1:1")
    ca, word = server_files().ca, "correct horse battery"
    with port() as (address, requests):
        found = credentials.given_files("127.0.0.1:7051", ca, None, None, "ann", word, address)
    assert found is not None
    assert len(requests) == 1
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        credentials.given_files("127.0.0.1:7151", ca, None, None, "ann", word)
    with pytest.raises(InvalidArgument, match="give these too"):
        credentials.given_files("127.0.0.1:7051", ca, None, None, None, None, address)
    with pytest.raises(InvalidArgument):
        credentials.given_files("127.0.0.1:7251", ca, None, None, "ann", word, "nowhere")
