"""Logins with tokens of issuers: which account they are of, and that an account need not have a password."""

import json

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from nyala.common.errors import (
    Forbidden,
    InvalidArgument,
    NyalaError,
    Unauthenticated,
    Unavailable,
)
from nyala.security.authorities.keyring import Keyring
from nyala.security.identity import identity_of_pem
from nyala.security.principal import AccessRole
from nyala.security.signing_request import new_request
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from tests.unit.master.support.master_cluster import OPTIONS, with_masters
from tests.unit.security.certificates import authority

KEY = ec.generate_private_key(ec.SECP256R1())
PASSWORD = "correct horse battery"


FIRST, SECOND = "https://login.example.com", "https://other.example.com"


def token(name="ann", key=KEY, issuer=FIRST):
    claims = {"iss": issuer, "aud": "nyala", "sub": name, "exp": 1 << 40}
    return jwt.encode(claims, key, "ES256", headers={"kid": "k"})


def issuers_file(*names):
    return "".join(
        f'[[issuer]]\nissuer = "{n}"\naudience = "nyala"\njwks = "keys.json"\n' for n in names
    )


@pytest.fixture
def masters_do(tmp_path):
    public = jwt.get_algorithm_by_name("ES256").to_jwk(KEY.public_key(), as_dict=True)
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [{**public, "kid": "k"}]}))
    path = tmp_path / "issuers.toml"
    path.write_text(issuers_file(FIRST))

    def run(work, *, issuers=str(path)):
        options = msgspec.structs.replace(OPTIONS, jwt_issuers=issuers)
        with_masters(work, options=options, keys=Keyring(authority()))

    return run


def login(**fields):
    return pb.LoginRequest(csr=new_request()[1], **fields)


async def with_ann(masters):
    masters.start()
    leader = await masters.leader()
    request = pb.AddUserRequest(name="ann", role="writer", without_password=True)
    await masters.ask(leader, methods.ADD_USER, request)
    return leader


def test_token_gives_a_certificate_of_the_account_that_it_names(masters_do):
    async def work(masters):
        leader = await with_ann(masters)
        for name in ("", "ann"):
            answer = await masters.ask(leader, methods.LOGIN, login(name=name, token=token()))
            found = identity_of_pem(answer.certificate).principal
            assert (answer.name, found.name, found.role) == ("ann", "ann", AccessRole.WRITER)

    masters_do(work)


def test_no_password_is_right_for_an_account_without_one(masters_do):
    async def work(masters):
        leader = await with_ann(masters)
        for password in ("", PASSWORD):
            with pytest.raises(Unauthenticated, match="password is wrong"):
                await masters.ask(leader, methods.LOGIN, login(name="ann", password=password))
        await masters.ask(
            leader, methods.SET_USER, pb.SetUserRequest(name="ann", password=PASSWORD)
        )
        answer = await masters.ask(leader, methods.LOGIN, login(name="ann", password=PASSWORD))
        assert answer.certificate

    masters_do(work)


@pytest.mark.parametrize(
    ("fields", "kind", "why"),
    [
        ({"token": token("bob")}, Unauthenticated, "'bob', who has no account"),
        ({"token": token(), "name": "root"}, Unauthenticated, "'ann', and not of 'root'"),
        (
            {"token": token(key=ec.generate_private_key(ec.SECP256R1()))},
            Unauthenticated,
            "signature",
        ),
        (
            {"token": token(), "name": "ann", "password": PASSWORD},
            InvalidArgument,
            "one of the two",
        ),
        ({"token": token(), "new_password": PASSWORD}, InvalidArgument, "one of the two"),
    ],
    ids=["no account", "another name", "another key", "a password too", "a new password"],
)
def test_refused_tokens(masters_do, fields, kind, why):
    async def work(masters):
        leader = await with_ann(masters)
        with pytest.raises(NyalaError, match=why) as found:
            await masters.ask(leader, methods.LOGIN, login(**fields))
        assert isinstance(found.value, kind)

    masters_do(work)


def test_disabled_account_and_masters_without_issuers_refuse_tokens(masters_do):
    async def disabled(masters):
        leader = await with_ann(masters)
        await masters.ask(leader, methods.SET_USER, pb.SetUserRequest(name="ann", disabled=True))
        with pytest.raises(Forbidden, match="disabled"):
            await masters.ask(leader, methods.LOGIN, login(token=token()))

    async def without(masters):
        leader = await with_ann(masters)
        with pytest.raises(Unauthenticated, match="jwt_issuers"):
            await masters.ask(leader, methods.LOGIN, login(token=token()))

    masters_do(disabled)
    masters_do(without, issuers="")


def test_wrong_tokens_of_one_host_have_to_wait_and_no_user_does(masters_do):
    async def work(masters):
        leader = await with_ann(masters)
        for _ in range(5):
            with pytest.raises(Unauthenticated, match="not a JSON Web Token"):
                await masters.ask(leader, methods.LOGIN, login(token="x", peer_host="1.2.3.4"))
        with pytest.raises(Unauthenticated, match="too many failed logins"):
            await masters.ask(leader, methods.LOGIN, login(token=token(), peer_host="1.2.3.4"))
        answer = await masters.ask(leader, methods.LOGIN, login(token=token(), peer_host="1.2.3.5"))
        assert answer.certificate

    masters_do(work)


def test_account_is_bound_to_the_issuer_that_named_it_first(masters_do, tmp_path):
    async def work(masters):
        leader = await with_ann(masters)

        async def logged_in(issuer):
            return await masters.ask(leader, methods.LOGIN, login(token=token(issuer=issuer)))

        assert (await logged_in(FIRST)).certificate
        (tmp_path / "issuers.toml").write_text(issuers_file(FIRST, SECOND))
        with pytest.raises(Unauthenticated, match=f"bound to tokens of {FIRST}; .*nyala user iss"):
            await logged_in(SECOND)
        assert (await logged_in(FIRST)).certificate
        change = pb.SetUserRequest(name="ann", issuer=SECOND)
        await masters.ask(leader, methods.SET_USER, change)
        assert (await logged_in(SECOND)).certificate
        with pytest.raises(Unauthenticated, match=f"bound to tokens of {SECOND}"):
            await logged_in(FIRST)
        (listed,) = (await masters.ask(leader, methods.LIST_USERS, pb.ListUsersRequest())).users
        assert listed.issuer == SECOND

    masters_do(work)


def test_account_of_no_issuer_yet_is_refused_while_several_are_accepted(masters_do, tmp_path):
    async def work(masters):
        (tmp_path / "issuers.toml").write_text(issuers_file(FIRST, SECOND))
        leader = await with_ann(masters)
        for issuer in (FIRST, SECOND):
            with pytest.raises(Unauthenticated, match="bound to none of the issuers yet"):
                await masters.ask(leader, methods.LOGIN, login(token=token(issuer=issuer)))
        bob = pb.AddUserRequest(name="bob", role="reader", without_password=True, issuer=SECOND)
        await masters.ask(leader, methods.ADD_USER, bob)
        of_bob = login(token=token("bob", issuer=SECOND))
        assert (await masters.ask(leader, methods.LOGIN, of_bob)).certificate
        bob.name, bob.issuer = "cid", "x" * 257
        with pytest.raises(InvalidArgument, match="at most 256 printable characters"):
            await masters.ask(leader, methods.ADD_USER, bob)

    masters_do(work)


def test_malformed_file_of_issuers_is_an_error_of_the_operator_and_no_failed_login(
    masters_do, tmp_path, caplog
):
    async def work(masters):
        leader = await with_ann(masters)
        (tmp_path / "issuers.toml").write_text("[[issuer]]\ncolour = 1\n")
        for _ in range(30):
            with pytest.raises(Unavailable, match="the master's log names the mistake"):
                await masters.ask(leader, methods.LOGIN, login(token=token(), peer_host="1.2.3.4"))
        assert "it has tables [[issuer]] with issuer, audience and jwks" in caplog.text
        (tmp_path / "issuers.toml").write_text(issuers_file(FIRST))
        answer = await masters.ask(leader, methods.LOGIN, login(token=token(), peer_host="1.2.3.4"))
        assert answer.certificate

    masters_do(work)
