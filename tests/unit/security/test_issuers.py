"""JSON Web Tokens of issuers: which are accepted, and why others are not (abuse case 11)."""

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from nyala.common.errors import InvalidArgument, Unauthenticated
from nyala.security.accounts.issuers import MAX_TOKEN_BYTES, TokenIssuers

ISSUER, NOW = "https://login.example.com", 1_700_000_000
EC_KEY, OTHER_KEY, ED_KEY = (
    ec.generate_private_key(ec.SECP256R1()),
    ec.generate_private_key(ec.SECP256R1()),
    ed25519.Ed25519PrivateKey.generate(),
)
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
KEYS: dict[str, tuple[str, Any]] = {
    "e": ("ES256", EC_KEY),
    "o": ("EdDSA", ED_KEY),
    "r": ("RS256", RSA_KEY),
}


def public(kid):
    algorithm, key = KEYS[kid]
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": kid, "use": "sig"}


def write(folder, keys, **fields):
    (folder / "keys.json").write_text(json.dumps({"keys": keys}))
    lines = {"issuer": ISSUER, "audience": "nyala", "jwks": "keys.json", **fields}
    text = "[[issuer]]\n" + "".join(f'{name} = "{value}"\n' for name, value in lines.items())
    (folder / "issuers.toml").write_text(text)
    return str(folder / "issuers.toml")


@pytest.fixture
def issuers(tmp_path):
    return TokenIssuers(write(tmp_path, [public(kid) for kid in KEYS]))


def claims(**changed):
    known = {"iss": ISSUER, "aud": "nyala", "sub": "ann", "exp": NOW + 60, **changed}
    return {name: value for name, value in known.items() if value is not None}


def token(kid="e", key=None, algorithm="", **changed):
    own = KEYS[kid]
    headers = {"kid": kid}
    return jwt.encode(claims(**changed), key or own[1], algorithm or own[0], headers=headers)


def raw(header, **changed):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part(header)}.{part(claims(**changed))}"


@pytest.mark.parametrize("kid", KEYS)
def test_token_of_each_kind_of_key_is_accepted(issuers, kid):
    assert issuers.account_in(token(kid), NOW).name == "ann"
    assert issuers.account_in(token(kid, aud=["other", "nyala"]), NOW).name == "ann"


PEM = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def signed_with_the_public_key():
    text = raw({"alg": "HS256", "kid": "r"})
    made = hmac.new(PEM, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(made).rstrip(b'=').decode()}"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: raw({"alg": "none", "kid": "e"}) + ".", "signature"),
        (signed_with_the_public_key, "signature"),
        (lambda: token(key=OTHER_KEY), "signature"),
        (lambda: jwt.encode(claims(), EC_KEY, "ES256", headers={"kid": "r"}), "signature"),
        (lambda: token()[:-4] + "AAAA", "signature"),
        (lambda: token(aud="billing"), "audience"),
        (lambda: token(aud=None), "no claim 'aud'"),
        (lambda: token(iss="https://evil.example"), "issuer"),
        (lambda: token(iss=None), "issuer"),
        (lambda: token(exp=None), "no claim 'exp'"),
        (lambda: token(exp=NOW - 31), "expired"),
        (lambda: token(nbf=NOW + 31), "not valid yet"),
        (lambda: token(exp="soon"), "not a number"),
        (lambda: token(exp=True), "not a number"),
        (lambda: token(sub=None), "not the name of an account"),
        (lambda: token(sub="ann/../root"), "not the name of an account"),
        (lambda: jwt.encode(claims(), EC_KEY, "ES256"), "one of the keys"),
        (lambda: jwt.encode(claims(), EC_KEY, "ES256", headers={"kid": "x"}), "one of the keys"),
        (lambda: "a.b.c", "not a JSON Web Token"),
        (lambda: "é" * 10, "not a JSON Web Token"),
        (lambda: "a" * (MAX_TOKEN_BYTES + 1), "larger than"),
        (lambda: "a" * 10_000_000, "larger than"),
    ],
)
def test_other_tokens_are_refused_and_not_repeated(issuers, made, why):
    given = made()
    with pytest.raises(Unauthenticated, match=why) as found:
        issuers.account_in(given, NOW)
    assert given[:40] not in found.value.message


def test_clocks_may_differ_by_half_a_minute(issuers):
    assert issuers.account_in(token(exp=NOW - 29, nbf=NOW + 29), NOW).name == "ann"


def test_keys_are_read_again_when_the_issuer_replaces_them(tmp_path):
    issuers = TokenIssuers(write(tmp_path, [public("e")]))
    with pytest.raises(Unauthenticated, match="one of the keys"):
        issuers.account_in(token("o"), NOW)
    write(tmp_path, [public("o")])
    assert issuers.account_in(token("o"), NOW).name == "ann"
    with pytest.raises(Unauthenticated, match="one of the keys"):
        issuers.account_in(token("e"), NOW)


def test_keys_of_a_kind_that_is_not_known_are_ignored(tmp_path):
    """Providers list keys for encryption, and of new kinds, beside those for signatures (RFC 7517, 5)."""
    others = [
        {**public("r"), "kid": "encryption", "alg": "RSA-OAEP-256", "use": "sig"},
        {**public("e"), "kid": "curve", "crv": "P-999"},
        {"kty": "OKP", "crv": "X25519", "x": "AAAA", "kid": "exchange"},
        {"kty": "EC", "kid": "incomplete"},
    ]
    found = TokenIssuers(write(tmp_path, [*others, public("e")]))
    assert found.account_in(token("e"), NOW).name == "ann"
    with pytest.raises(InvalidArgument, match="no public key for signatures"):
        TokenIssuers(write(tmp_path, others))


def test_another_claim_names_the_account(tmp_path):
    issuers = TokenIssuers(write(tmp_path, [public("e")], name_claim="email"))
    assert issuers.account_in(token(email="ann@example.com"), NOW).name == "ann@example.com"


def test_malformed_files_are_refused_at_the_start(tmp_path):
    symmetric = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    for keys, fields, why in (
        ([symmetric], {}, "no public key"),
        ([], {}, "no public key"),
        ([{"kty": "EC", "kid": "e"}], {}, "no public key"),
        (["e"], {}, "not a JSON Web Key Set"),
        ([public("e")], {"jwks": "none.json"}, "cannot be read"),
        ([public("e")], {"audience": ""}, "empty"),
        ([public("e")], {"colour": "red"}, "colour"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            TokenIssuers(write(tmp_path, keys, **fields))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        TokenIssuers(str(tmp_path / "absent.toml"))
