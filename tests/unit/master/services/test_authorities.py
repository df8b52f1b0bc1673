"""Replacement of the certificate authority at the masters: its steps, under any leader."""

import asyncio

import pytest

from nyala.common.errors import (
    AlreadyPresent,
    Forbidden,
    InvalidArgument,
    Unauthenticated,
    Unavailable,
)
from nyala.security.authorities import bundle
from nyala.security.identity import CALLER, PeerIdentity, identity_of_pem
from nyala.security.principal import AccessRole, Principal
from nyala.security.signing_request import new_request
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from tests.unit.master.support.master_cluster import NAMES, others, with_masters
from tests.unit.master.support.master_helpers import server_info
from tests.unit.master.support.rotation import SERVER, Reports, begun, issuing, key_folders, status

NOBODY = pb.IssuedCertificates()
PASSWORD = "correct horse battery"


@pytest.fixture
def keys(tmp_path):
    """Each master's own folder with the key."""
    return key_folders(tmp_path)


def test_key_of_the_new_authority_is_on_every_master_before_anything_depends_on_it(keys):
    async def work(masters):
        leader, new, _ = await begun(masters, keys)
        assert all(bundle.key_id(new) in keys[name].ids for name in NAMES)
        known = await status(masters, leader)
        assert [bundle.parse(c)[0] for c in known.certificates][1] == new
        assert {s.lacks.partition(":")[0] for s in known.behind} == {"a report"}
        with pytest.raises(AlreadyPresent, match="being replaced already"):
            await masters.ask(leader, methods.ROTATE_AUTHORITY, pb.RotateAuthorityRequest())
        with pytest.raises(InvalidArgument, match="no authority to retire"):
            await masters.ask(
                leader, methods.RETIRE_AUTHORITY, pb.RetireAuthorityRequest(issued=NOBODY)
            )

    with_masters(work, keys=keys)


def test_rotation_does_not_begin_without_a_majority_that_has_the_key(keys):
    async def first(masters):
        masters.start()
        return await masters.leader()

    async def work(masters):
        leader = await first(masters)
        with pytest.raises(Unavailable, match="has not reached a majority"):
            await masters.ask(leader, methods.ROTATE_AUTHORITY, pb.RotateAuthorityRequest())
        assert len((await status(masters, leader)).certificates) == 1

    leads = with_masters(first)  # here too: the seed is the same
    with_masters(work, keys={leads: keys[leads]})


def test_new_authority_issues_once_every_live_server_trusts_it_under_the_next_leader_too(keys):
    async def work(masters):
        leader, new, reports = await begun(masters, keys)
        answer = await reports.until_step(leader, [*NAMES, "t"], None)
        assert len(answer.certificates) == 2
        known = await status(masters, leader)
        assert {s.lacks.partition(":")[0] for s in known.behind} == {
            "the certificates of the authorities"
        }
        trusted = b"".join(answer.certificates)
        masters.processes[leader].kill()
        second = await masters.leader(others(leader))
        left = others(leader)
        await reports.until_step(second, left, trusted)  # and the tablet server is behind
        known = await status(masters, second)
        assert (known.issuing_us, [s.uuid for s in known.behind]) == (0, [SERVER])
        answer = await reports.until_step(second, [*left, "t"], trusted)
        known = await status(masters, second)
        assert known.issuing_us
        assert bundle.parse(answer.certificates[0])[0] == new
        joined = await masters.ask(
            second, methods.CREATE_TOKEN, pb.CreateTokenRequest(role="tserver", ttl_s=60, uses=1)
        )
        assert joined.token.split(".")[1] == bundle.fingerprint(new)

    with_masters(work, keys=keys)


def test_old_authority_is_retired_when_no_server_and_no_login_needs_it(keys):
    async def work(masters):
        masters.start()
        first = await masters.leader()
        for name in ("ann", "bob"):
            wanted = pb.AddUserRequest(name=name, role="reader", password=PASSWORD)
            await masters.ask(first, methods.ADD_USER, wanted)
        login = pb.LoginRequest(name="ann", password=PASSWORD, csr=new_request()[1])
        await masters.ask(first, methods.LOGIN, login)
        browser = pb.LoginRequest(name="bob", password=PASSWORD)  # a session has no certificate
        await masters.ask(first, methods.LOGIN, browser)
        leader, answer, reports = await issuing(masters, keys)
        newest = bundle.key_id(bundle.parse(answer.certificates[0])[0])
        trusted = b"".join(answer.certificates)
        retire = pb.RetireAuthorityRequest(issued=NOBODY)
        await reports.all(leader, [*NAMES, "t"], trusted, newest)
        await reports.send(leader, "t", trusted)
        with pytest.raises(Forbidden, match=r"tserver t:1 lacks a certificate of .*; .*: ann\. "):
            await masters.ask(leader, methods.RETIRE_AUTHORITY, retire)
        await reports.all(leader, [*NAMES, "t"], trusted, newest)
        login.csr = new_request()[1]
        issued = await masters.ask(leader, methods.LOGIN, login)
        assert identity_of_pem(issued.certificate).authority == newest
        with pytest.raises(Forbidden, match="ann"):  # the first login lasts
            await masters.ask(leader, methods.RETIRE_AUTHORITY, retire)
        change = pb.SetUserRequest(name="ann", disabled=True)
        await masters.ask(leader, methods.SET_USER, change)  # ends it
        done = await masters.ask(leader, methods.RETIRE_AUTHORITY, retire)
        assert [bundle.key_id(bundle.parse(c)[0]) for c in done.certificates] == [newest]
        masters.processes[leader].kill()
        second = await masters.leader(others(leader))
        found = await reports.send(second, "t", trusted, newest)
        assert list(found.certificates) == list(done.certificates)
        again = await masters.ask(second, methods.ROTATE_AUTHORITY, pb.RotateAuthorityRequest())
        assert bundle.parse(again.certificate), "and it may be replaced again"

    with_masters(work, keys=keys)


def test_old_authority_is_not_retired_while_a_server_that_needs_it_is_down(keys):
    """It could not join the cluster again, and an operator may not have missed it."""

    async def work(masters):
        leader, answer, reports = await issuing(masters, keys)
        newest = bundle.key_id(bundle.parse(answer.certificates[0])[0])
        trusted, retire = b"".join(answer.certificates), pb.RetireAuthorityRequest(issued=NOBODY)
        down = others(leader)[0]
        up = [n for n in (*NAMES, "t") if n != down]
        for _ in range(6):  # the reports of the master that is down are too old
            await masters.heartbeat(SERVER, among=(leader,))
            await reports.all(leader, up, trusted, newest)
            await masters.loop.delay(2_000_000)
        with pytest.raises(
            Forbidden, match=r"master .* it is not running, and without one it cannot join"
        ):
            await masters.ask(leader, methods.RETIRE_AUTHORITY, retire)
        assert [s.role for s in (await status(masters, leader)).behind] == ["master"]
        await reports.all(leader, [down], trusted, newest)
        for _ in range(6):  # it is down again, with a certificate of the new authority
            await masters.heartbeat(SERVER, among=(leader,))
            await reports.all(leader, up, trusted, newest)
            await masters.loop.delay(2_000_000)
        assert len((await masters.ask(leader, methods.RETIRE_AUTHORITY, retire)).certificates) == 1

    with_masters(work, keys=keys)


def test_requests_that_name_their_authority_take_effect_once_however_often_they_are_sent(keys):
    """A client sends a request again that was not answered in time, and that may have been carried out."""

    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat(SERVER)
        reports = Reports(masters, keys)
        old = reports.issuer
        rotate = pb.RotateAuthorityRequest(replaces=old)

        def ask(method, request):
            return masters.ask(leader, method, request)

        first, second = await asyncio.gather(
            ask(methods.ROTATE_AUTHORITY, rotate), ask(methods.ROTATE_AUTHORITY, rotate)
        )
        assert first.certificate == second.certificate
        assert len((await status(masters, leader)).certificates) == 2
        with pytest.raises(AlreadyPresent, match="being replaced already"):
            await ask(methods.ROTATE_AUTHORITY, pb.RotateAuthorityRequest(replaces="ab" * 20))
        trusted = b"".join((await reports.all(leader, NAMES)).certificates)
        await reports.until_step(leader, [*NAMES, "t"], trusted)
        assert (await ask(methods.ROTATE_AUTHORITY, rotate)).certificate == first.certificate
        new = bundle.key_id(bundle.parse(first.certificate)[0])
        wrong = pb.RetireAuthorityRequest(force=True, authority=new)
        with pytest.raises(InvalidArgument, match="is not the old one"):
            await ask(methods.RETIRE_AUTHORITY, wrong)
        retire = pb.RetireAuthorityRequest(force=True, authority=old)
        answers = await asyncio.gather(*(ask(methods.RETIRE_AUTHORITY, retire) for _ in range(3)))
        assert [list(a.certificates) for a in answers] == [[first.certificate]] * 3
        with pytest.raises(InvalidArgument, match="does not issue any more"):
            await ask(methods.ROTATE_AUTHORITY, rotate)

    with_masters(work, keys=keys)


def test_force_retires_whoever_needs_it(keys):
    async def work(masters):
        leader, _, _ = await issuing(masters, keys)
        with pytest.raises(Forbidden, match="--force"):
            await masters.ask(
                leader, methods.RETIRE_AUTHORITY, pb.RetireAuthorityRequest(issued=NOBODY)
            )
        wanted = pb.RetireAuthorityRequest(force=True)
        assert len((await masters.ask(leader, methods.RETIRE_AUTHORITY, wanted)).certificates) == 1

    with_masters(work, keys=keys)


def test_master_that_lacks_the_key_gets_it_from_one_that_has_it(keys):
    async def work(masters):
        leader, new, reports = await begun(masters, keys)
        newest = bundle.key_id(new)
        await reports.send(leader, "m0", keys=[reports.issuer])
        answer = await reports.send(leader, "m1", keys=keys["m1"].ids)
        assert list(answer.send_key_to) == ["m0:1"]
        assert newest in keys["m1"].ids
        without = await reports.send(leader, "m2", keys=[reports.issuer])
        assert not without.send_key_to, "it has nothing to send"
        assert not (await reports.send(leader, "t")).send_key_to

    with_masters(work, keys=keys)


def test_certificate_that_is_issued_again_has_the_times_and_serial_number_of_the_old_one(keys):
    async def work(masters):
        leader, answer, reports = await issuing(masters, keys)
        newest = bundle.key_id(bundle.parse(answer.certificates[0])[0])
        reissue = masters.master(leader).handlers()[methods.REISSUE]
        csr = new_request()[1]
        old = PeerIdentity(
            Principal("a" * 32, AccessRole.WRITER, "ann"),
            31,
            1_000,
            2_000_000_000,
            (),
            reports.issuer,
        )
        CALLER.set(old)
        found = await reissue(pb.ReissueRequest(csr=csr))
        made = identity_of_pem(found.certificate)
        assert (made.serial, made.begins_s, made.ends_s) == (31, 1_000, 2_000_000_000)
        assert (made.principal.name, made.principal.role) == ("ann", AccessRole.WRITER)
        assert made.authority == newest
        assert found.ca == b"".join(answer.certificates)
        CALLER.set(made)
        assert not (await reissue(pb.ReissueRequest(csr=csr))).certificate, "it is of the new one"
        server = Principal("a" * 32, AccessRole.SERVER, f"tserver-{SERVER}")
        CALLER.set(PeerIdentity(server, 32, 1_000, 2_000_000_000, (), reports.issuer))
        with pytest.raises(Forbidden, match="servers renew theirs"):
            await reissue(pb.ReissueRequest(csr=csr))
        CALLER.set(None)
        await masters.ask(leader, methods.REVOKE, pb.RevokeRequest(name="ann"))
        CALLER.set(old)
        with pytest.raises(Unauthenticated, match="was revoked"):
            await reissue(pb.ReissueRequest(csr=csr))

    with_masters(work, keys=keys)


def test_administrator_does_not_retire_the_authority_of_the_certificate_in_use(keys):
    async def work(masters):
        leader, answer, reports = await issuing(masters, keys)
        newest = bundle.key_id(bundle.parse(answer.certificates[0])[0])
        await reports.all(leader, [*NAMES, "t"], b"".join(answer.certificates), newest)
        retire = masters.master(leader).handlers()[methods.RETIRE_AUTHORITY]
        admin = Principal("a" * 32, AccessRole.ADMIN, "admin")
        CALLER.set(PeerIdentity(admin, 31, 0, 1 << 40, (), reports.issuer))
        with pytest.raises(Forbidden, match="renew it with: nyala cert renew"):
            await retire(pb.RetireAuthorityRequest(issued=NOBODY))

    with_masters(work, keys=keys)


def test_new_authority_does_not_issue_while_a_member_of_an_ensemble_does_not_trust_it(keys):
    async def work(masters):
        leader, new, reports = await begun(masters, keys)
        old = reports.trusted
        member = pb.AuthoritiesReport(
            uuid="6" * 32, role="member", address="ram:1",
            digest=bundle.digest(old), issuer=reports.issuer,
        )  # fmt: skip
        asked = pb.AccessRulesRequest(authorities=member)
        trusted = b"".join((await reports.all(leader, NAMES)).certificates)
        for _ in range(5):
            answer = await reports.all(leader, [*NAMES, "t"], trusted)
            await masters.ask(leader, methods.ACCESS_RULES, asked)
            await masters.heartbeat(SERVER, among=(leader,))
            await masters.loop.delay(2_000_000)
        assert bundle.parse(answer.certificates[1])[0] == new, "the old one issues"
        behind = (await status(masters, leader)).behind
        assert [(s.uuid, s.role, s.address) for s in behind] == [("6" * 32, "member", "ram:1")]
        asked.authorities.digest = bundle.digest(trusted)
        await masters.ask(leader, methods.ACCESS_RULES, asked)
        answer = await reports.all(leader, [*NAMES, "t"], trusted)
        assert bundle.parse(answer.certificates[0])[0] == new

    with_masters(work, keys=keys)


def test_reports_of_many_servers_that_nobody_knows_displace_each_other(keys, monkeypatch):
    monkeypatch.setattr("nyala.master.services.authorities.MAX_REPORTS", 5)

    async def work(masters):
        leader, _, _ = await begun(masters, keys)
        for number in range(20):
            unknown = pb.AuthoritiesReport(uuid=f"{number:032x}", role="member", address="x:1")
            await masters.ask(
                leader, methods.ACCESS_RULES, pb.AccessRulesRequest(authorities=unknown)
            )
        behind = (await status(masters, leader)).behind
        members = [s.uuid for s in behind if s.role == "member"]
        assert members == [f"{number:032x}" for number in range(15, 20)], "the newest ones are kept"
        large = pb.AuthoritiesReport(uuid=SERVER, role="tserver", address="x" * (16 << 10))
        with pytest.raises(InvalidArgument, match="at most 16384 bytes"):
            await masters.ask(
                leader, methods.ACCESS_RULES, pb.AccessRulesRequest(authorities=large)
            )

    with_masters(work, keys=keys)


def test_server_reports_for_itself_only(keys):
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        report = masters.master(leader).handlers()[methods.ACCESS_RULES]
        other = Principal("a" * 32, AccessRole.SERVER, f"tserver-{'8' * 32}")
        CALLER.set(PeerIdentity(other, 31, 0, 1 << 40))
        asked = pb.AccessRulesRequest(
            authorities=pb.AuthoritiesReport(uuid=server_info(SERVER).uuid)
        )
        with pytest.raises(Forbidden, match="arrived with the certificate of"):
            await report(asked)

    with_masters(work, keys=keys)
