"""Upkeep of a server's certificates against a real port: renewal, and the list of revoked ones."""

import contextlib
import shutil
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import uvloop

from nyala.admin.authorities import AuthorityUpkeep, ReportingServer
from nyala.admin.certificates import CertificateUpkeep, with_problems
from nyala.common.errors import Corrupt, Forbidden, Unauthenticated
from nyala.env.env import system_env
from nyala.security import revocation
from nyala.security.authorities import bundle
from nyala.security.authorities.keyring import Keyring
from nyala.security.authority import load, self_signed, write_private
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles
from nyala.security.identity import CALLER, identity_of_pem
from nyala.security.principal import AccessRole, server_name
from nyala.security.revocation import Revocation
from nyala.security.signing_request import new_request, public_key_of
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import nyala_pb2
from nyala.wire.server import GrpcServer
from tests.unit.security.certificates import authority, server, server_files

NAME = server_name("tserver", "7" * 32)


class Master:
    """Answers to the methods that the upkeep calls."""

    def __init__(self):
        self.entries, self.renewals, self.refuses = [], 0, False
        self.signer, self.answer = load(authority()), pb.AuthoritiesAnswer()
        self.version, self.asked = 1, 0

    async def rules(self, request):
        self.asked += 1
        assert request.authorities.uuid == "7" * 32
        answer = pb.AccessRulesResponse(version=self.version, authorities=self.answer)
        if request.none or request.version != self.version:
            answer.changed = True
            answer.grants.add(user="ann", role="reader", table_id="7" * 32)
        digest = revocation.digest(self.entries)
        if request.revoked != digest:
            answer.revocations.digest = digest
            for entry in self.entries:
                answer.revocations.revocations.add(id=entry.id, revoked_us=entry.revoked_us)
        return answer

    async def renew(self, request):
        if self.refuses:
            raise Forbidden("the leader master cannot sign certificates")
        self.renewals += 1
        key, caller = public_key_of(request.csr), CALLER.get()
        assert caller is not None
        valid = timedelta(days=30)
        signed = self.signer.sign(
            key, AccessRole.SERVER, caller.principal.name, caller.hosts, valid
        )
        return pb.RenewResponse(certificate=signed)


def joined(folder, name=NAME, valid=timedelta(minutes=20)):
    """Return credentials in one file, as of a server that joined."""
    key, request = new_request()
    signer = load(authority())
    signed = signer.sign(public_key_of(request), AccessRole.SERVER, name, ["127.0.0.1"], valid)
    write_private(folder / "server.pem", signed + key)
    pem = str(folder / "server.pem")
    ca = str(shutil.copy(server_files().ca, folder))
    return Credentials(CredentialFiles(ca, pem, pem))


@contextlib.asynccontextmanager
async def upkeep_of(folder, credentials):
    master, rpc = Master(), GrpcRpc(credentials=credentials)
    handlers = {
        methods.ACCESS_RULES: master.rules,
        methods.RENEW: master.renew,
    }
    grpc_server = GrpcServer(handlers, "127.0.0.1:0", credentials=server())
    address, env = await grpc_server.start(), system_env(rpc)
    try:
        authorities = AuthorityUpkeep(
            env, credentials, lambda: ReportingServer("tserver", "7" * 32, "a:1")
        )
        yield (
            master,
            CertificateUpkeep(env, credentials, str(folder), lambda: [address], authorities),
        )
    finally:
        await rpc.close()
        await grpc_server.stop(0)
        await env.tasks.close()


def test_certificate_is_renewed_with_a_new_key_after_two_thirds_of_its_life(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:  # it was issued an hour ago, for 80 minutes
        patched.setattr("nyala.security.authority.BACKDATED", timedelta(seconds=300 + 3_600))
        credentials = joined(tmp_path)
    before = credentials.pem

    async def scenario():
        async with upkeep_of(tmp_path, credentials) as (master, upkeep):
            master.refuses = True
            with pytest.raises(Forbidden, match="cannot sign"):
                await upkeep.renew_if_due()
            assert credentials.pem == before, "the old one is used as long as it lasts"
            master.refuses = False
            await upkeep.renew_if_due()
            await upkeep.renew_if_due()  # not due any more
            await upkeep.learn()  # with the new one
            assert master.renewals == 1

    uvloop.run(scenario())
    old, new = identity_of_pem(before.cert), identity_of_pem(credentials.pem.cert)
    assert (new.principal, new.hosts) == (old.principal, old.hosts)
    assert new.ends_s > old.ends_s
    assert credentials.pem.key.split(b"PRIVATE KEY")[1] != before.key.split(b"PRIVATE KEY")[1]
    assert (tmp_path / "server.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("minutes", "name", "said"),
    [
        (18, NAME, "not renewed (the leader master cannot sign certificates); from then on"),
        (18, "db1", "not renewed (no master issued it); from then on"),
        (12, NAME, ""),
    ],
    ids=["refused", "made by hand", "early"],
)
def test_certificate_that_ends_soon_is_reported_until_it_is_renewed(
    tmp_path, monkeypatch, minutes, name, said
):
    """Its life is 20 minutes, of which the last sixth is reported."""
    with monkeypatch.context() as patched:
        past = timedelta(seconds=300, minutes=minutes)
        patched.setattr("nyala.security.authority.BACKDATED", past)
        credentials = joined(tmp_path, name, timedelta(minutes=20 - minutes))

    async def listed(_request):
        return nyala_pb2.ListTabletsResponse(problems=["of its disk"])

    async def scenario():
        async with upkeep_of(tmp_path, credentials) as (master, upkeep):
            asked: Any = with_problems({methods.LIST_TABLETS: listed}, upkeep)

            async def problems():
                request = nyala_pb2.ListTabletsRequest()
                return list((await asked[methods.LIST_TABLETS](request)).problems)

            master.refuses = True
            with contextlib.suppress(Forbidden):
                await upkeep.renew_if_due()
            found = await problems()
            assert found[0] == "of its disk"
            assert len(found) == 1 + bool(said)
            assert said in found[-1]
            assert not said or "nyala cert server" in found[-1]
            if name == NAME:
                master.refuses = False
                await upkeep.renew_if_due()
                assert await problems() == ["of its disk"]

    uvloop.run(scenario())


def test_authority_that_ends_soon_is_reported(tmp_path):
    credentials = joined(tmp_path)

    async def scenario():
        async with upkeep_of(tmp_path, credentials) as (_, upkeep):
            assert upkeep.problems() == []
            short = self_signed(load(authority()).key, days=0)
            credentials.pem = replace(credentials.pem, ca=bundle.pem_of([short]))
            (found,) = upkeep.problems()
            assert "the certificate authority of the cluster ends at" in found
            assert "nyala ca rotate" in found

    uvloop.run(scenario())


def test_certificate_that_no_master_issued_is_not_renewed(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("nyala.security.authority.BACKDATED", timedelta(seconds=300 + 3_600))
        credentials = joined(tmp_path, name="db1")

    async def scenario():
        async with upkeep_of(tmp_path, credentials) as (master, upkeep):
            await upkeep.renew_if_due()
            assert master.renewals == 0

    uvloop.run(scenario())


def test_list_of_revoked_certificates_is_in_force_and_outlives_the_process(tmp_path):
    credentials = joined(tmp_path)
    revoked = identity_of_pem(credentials.pem.cert)

    async def scenario():
        async with upkeep_of(tmp_path, credentials) as (master, upkeep):
            await upkeep.learn()
            assert not (tmp_path / "revoked").exists()
            master.entries = [Revocation(revocation.id_of_serial(f"{revoked.serial:x}"), 5)]
            await upkeep.learn()
            assert master.asked == 2, "one request for grants and revocations"
            assert (credentials.grants.version, len(credentials.grants)) == (1, 1)
            with pytest.raises(Unauthenticated):
                credentials.revocations.check(revoked)
            master.version = 2
            await upkeep.learn()
            assert credentials.grants.version == 2
            with pytest.raises(Unauthenticated):  # an answer without a list leaves the list
                credentials.revocations.check(revoked)
            again = Credentials(credentials.files)
            env = system_env(GrpcRpc())
            authorities = AuthorityUpkeep(
                env, again, lambda: ReportingServer("tserver", "7" * 32, "a:1")
            )
            later = CertificateUpkeep(env, again, str(tmp_path), list, authorities)
            later.load()
            with pytest.raises(Unauthenticated):
                again.revocations.check(revoked)
            (tmp_path / "revoked").write_text("[1]")
            with pytest.raises(Corrupt, match="revoked certificates"):
                later.load()

    uvloop.run(scenario())


def test_new_authority_is_trusted_first_and_then_the_certificate_is_renewed_by_it(tmp_path):
    credentials = joined(tmp_path)
    (tmp_path / "ca.crt").chmod(0o644)
    before = identity_of_pem(credentials.pem.cert)
    old = load(authority())
    made = bundle.successor(old)
    new = made.authority

    async def scenario():
        async with upkeep_of(tmp_path, credentials) as (master, upkeep):
            await upkeep.learn()
            assert credentials.version == 0, "the first authority was never replaced"
            trusted = [old.certificate_pem, new.certificate_pem]
            master.answer = pb.AuthoritiesAnswer(certificates=trusted, links=[made.link])
            await upkeep.learn()
            await upkeep.renew_if_due()
            assert (credentials.version, master.renewals) == (1, 0), "the old one issues"
            assert credentials.pem.ca == b"".join(trusted)
            assert (tmp_path / "ca.crt").stat().st_mode & 0o777 == 0o644
            master.signer = new
            master.answer = pb.AuthoritiesAnswer(certificates=trusted[::-1], links=[made.link])
            await upkeep.learn()
            await upkeep.renew_if_due()
            await upkeep.renew_if_due()
            assert master.renewals == 1
            await upkeep.learn()  # the master knows the old authority only
            master.answer = pb.AuthoritiesAnswer(certificates=trusted[1:], links=[made.link])
            await upkeep.learn()
            assert credentials.pem.ca == new.certificate_pem

    uvloop.run(scenario())
    after = identity_of_pem(Credentials(credentials.files).pem.cert)
    assert (after.principal, after.hosts) == (before.principal, before.hosts)
    assert after.authority == bundle.key_id(new.certificate)


def test_aborted_authority_is_trusted_no_more_and_its_key_is_removed_and_no_other(tmp_path):
    credentials = joined(tmp_path)
    old = load(authority())
    made, other = bundle.successor(old), bundle.successor(old)
    for name in ("ca.crt", "ca.key"):
        shutil.copy(f"{authority()}/{name}", tmp_path)
    keys = Keyring(str(tmp_path))
    trusted = [old.certificate_pem, made.authority.certificate_pem]
    new, foreign = (bundle.key_id(m.authority.certificate) for m in (made, other))
    (present,) = keys.ids

    async def scenario():
        env = system_env(GrpcRpc())
        upkeep = AuthorityUpkeep(
            env, credentials, lambda: ReportingServer("master", "1" * 32, "a:1"), keys
        )
        for key in (made.authority.key, other.authority.key):
            keys.add(key)
        answer = pb.AuthoritiesAnswer(
            certificates=trusted, links=[made.link], aborted=[foreign, new, present]
        )
        await upkeep.take(answer)
        assert keys.ids == sorted([present, new]), "that of an authority that is trusted stays"
        await upkeep.take(pb.AuthoritiesAnswer(certificates=trusted[:1], aborted=[foreign, new]))
        assert keys.ids == [present]
        assert credentials.pem.ca == old.certificate_pem
        await env.tasks.close()

    uvloop.run(scenario())


def test_authority_that_nobody_trusted_has_certified_is_not_taken_from_a_master(tmp_path):
    credentials = joined(tmp_path)
    foreign = bundle.successor(load(authority("other")))
    made = bundle.successor(load(authority()))

    async def scenario():
        async with upkeep_of(tmp_path, credentials) as (master, upkeep):
            wanted = [credentials.pem.ca, foreign.authority.certificate_pem]
            master.answer = pb.AuthoritiesAnswer(certificates=wanted, links=[foreign.link])
            with pytest.raises(Unauthenticated, match="not certified by one that is trusted"):
                await upkeep.learn()
            wanted = [made.authority.certificate_pem]
            master.answer = pb.AuthoritiesAnswer(certificates=wanted, links=[made.link])
            with pytest.raises(Unauthenticated, match="was retired"):
                await upkeep.learn()
        assert credentials.pem.ca == (tmp_path / "ca.crt").read_bytes()
        assert len(bundle.parse(credentials.pem.ca)) == 1

    uvloop.run(scenario())
