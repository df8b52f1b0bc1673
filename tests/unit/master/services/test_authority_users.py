"""Retirement of an authority that users need, and replacements that are aborted, at the masters."""

import pytest

from nyala.common.errors import Forbidden, InvalidArgument
from nyala.security.authorities import bundle
from nyala.security.identity import CALLER, PeerIdentity
from nyala.security.principal import AccessRole, Principal
from nyala.security.signing_request import new_request
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from tests.unit.master.support.master_cluster import NAMES, others, with_masters
from tests.unit.master.support.rotation import SERVER, begun, issuing, key_folders, status

FAR_S = 1 << 33


@pytest.fixture
def keys(tmp_path):
    """Each master's own folder with the key."""
    return key_folders(tmp_path)


def listed(*entries):
    return pb.IssuedCertificates(certificates=entries)


def entry(serial, user, authority, ends_s=FAR_S):
    return pb.IssuedCertificate(
        serial=serial, user=user, issued_s=1_000, ends_s=ends_s, authority=authority
    )


def as_user(name, serial, authority):
    who = Principal("a" * 32, AccessRole.WRITER, name)
    return PeerIdentity(who, serial, 1_000, FAR_S, (), authority)


async def nobody_behind(masters, leader, answer, reports):
    newest = bundle.key_id(bundle.parse(answer.certificates[0])[0])
    await reports.all(leader, [*NAMES, "t"], b"".join(answer.certificates), newest)
    return newest


def test_authority_that_a_certificate_of_a_user_needs_is_not_retired_under_the_next_leader_too(
    keys,
):
    async def work(masters):
        leader, answer, reports = await issuing(masters, keys)
        newest = await nobody_behind(masters, leader, answer, reports)
        old = reports.issuer
        issued = listed(
            entry("1f", "ann", old), entry("20", "bob", old), entry("21" * 10, "cid", old),
            entry("22", "dan", newest), entry("23", "eve", old, ends_s=1),
        )  # fmt: skip
        retire = pb.RetireAuthorityRequest(issued=issued)
        with pytest.raises(Forbidden, match=r"not renewed: ann \(serial number 1f\), bob .*, cid"):
            await masters.ask(leader, methods.RETIRE_AUTHORITY, retire)
        CALLER.set(as_user("ann", 0x1F, old))
        reissue = masters.master(leader).handlers()[methods.REISSUE]
        await reissue(pb.ReissueRequest(csr=new_request()[1]))
        CALLER.set(None)
        await masters.ask(leader, methods.REVOKE, pb.RevokeRequest(name="bob"))
        asked = pb.AuthorityStatusRequest(issued=issued)
        shown = await masters.ask(leader, methods.AUTHORITY_STATUS, asked)
        assert [u.user for u in shown.users] == ["cid"]
        masters.processes[leader].kill()
        await masters.leader(others(leader))
        masters.processes[leader].start()
        second = await masters.leader()
        await nobody_behind(masters, second, answer, reports)
        await masters.heartbeat(SERVER, among=(second,))
        with pytest.raises(Forbidden, match=rf"not renewed: cid \(serial number {'21' * 10}\); "):
            await masters.ask(second, methods.RETIRE_AUTHORITY, retire)
        await masters.ask(second, methods.REVOKE, pb.RevokeRequest(serial="21" * 10))
        assert len((await masters.ask(second, methods.RETIRE_AUTHORITY, retire)).certificates) == 1

    with_masters(work, keys=keys)


def test_authority_is_retired_without_the_list_of_users_by_force_only(keys):
    async def work(masters):
        leader, answer, reports = await issuing(masters, keys)
        await nobody_behind(masters, leader, answer, reports)
        with pytest.raises(InvalidArgument, match="nyala ca retire --dir FOLDER"):
            await masters.ask(leader, methods.RETIRE_AUTHORITY, pb.RetireAuthorityRequest())
        bad = pb.RetireAuthorityRequest(issued=listed(entry("x", "ann", reports.issuer)))
        with pytest.raises(InvalidArgument, match=r"'x' in the list .* no serial number"):
            await masters.ask(leader, methods.RETIRE_AUTHORITY, bad)
        wanted = pb.RetireAuthorityRequest(
            force=True, issued=listed(entry("1f", "ann", reports.issuer))
        )
        assert len((await masters.ask(leader, methods.RETIRE_AUTHORITY, wanted)).certificates) == 1

    with_masters(work, keys=keys)


def test_replacement_is_aborted_before_the_new_authority_issues_and_every_leader_goes_on(keys):
    async def work(masters):
        leader, new, reports = await begun(masters, keys)
        made = bundle.key_id(new)
        answer = await reports.all(leader, NAMES)
        done = await masters.ask(leader, methods.ABORT_AUTHORITY, pb.AbortAuthorityRequest())
        assert list(done.certificates) == [answer.certificates[0]]
        masters.processes[leader].kill()
        second = await masters.leader(others(leader))
        both = b"".join(answer.certificates)
        found = await reports.until_step(second, [*others(leader), "t"], both)
        assert list(found.certificates) == list(done.certificates), "the old one goes on alone"
        assert (list(found.aborted), list(found.links)) == ([made], [])
        assert not (await status(masters, second)).issuing_us
        with pytest.raises(InvalidArgument, match="no replacement to abort: no replacement"):
            await masters.ask(second, methods.ABORT_AUTHORITY, pb.AbortAuthorityRequest())
        masters.processes[leader].start()
        again = await masters.ask(second, methods.ROTATE_AUTHORITY, pb.RotateAuthorityRequest())
        assert bundle.key_id(bundle.parse(again.certificate)[0]) != made
        found = await reports.send(second, "t", both)
        assert (len(found.certificates), list(found.aborted)) == (2, [made])

    with_masters(work, keys=keys)


def test_replacement_is_not_aborted_once_the_new_authority_issues(keys):
    async def work(masters):
        leader, _, _ = await issuing(masters, keys)
        with pytest.raises(
            InvalidArgument, match=r"the new authority issues certificates, .* retire"
        ):
            await masters.ask(leader, methods.ABORT_AUTHORITY, pb.AbortAuthorityRequest())
        assert len((await status(masters, leader)).certificates) == 2

    with_masters(work, keys=keys)
