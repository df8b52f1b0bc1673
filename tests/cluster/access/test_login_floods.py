"""Floods of wrong logins at a real cluster, and keys of an issuer that are replaced under load.

Each guesser has an address of loopback of its own, as hosts have in a network.
"""

import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from nyala.common.errors import NyalaError, Throttled, Unauthenticated
from nyala.security.audit import verify
from nyala.security.signing_request import new_request
from nyala.testing import MiniCluster, layout
from nyala.wire import status
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.tls.refusals import CALLS_OF_CALLER
from tests.waiting import later, wait_until, within

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

PASSWORD = "correct horse battery"
HOME = "127.0.0.1"
GUESSERS = (HOME, HOME, "127.0.0.66", "127.0.0.67")
GUESSES = 200
"""Guesses of each guesser."""
GROWN = 200 << 20
"""Bytes by which the memory of a master may grow."""
ISSUER, AUDIENCE = "idp", "nyala"


class Keys:
    """Keys of an issuer, and the file of the public ones."""

    def __init__(self, folder):
        self.path, self._keys = folder / "keys.json", {}
        for kid in ("first", "second", "foreign"):
            self._keys[kid] = ec.generate_private_key(ec.SECP256R1())

    def publish(self, *kids):
        to_jwk = jwt.get_algorithm_by_name("ES256").to_jwk
        listed = [{**to_jwk(self._keys[k].public_key(), as_dict=True), "kid": k} for k in kids]
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"keys": listed}))
        os.replace(new, self.path)

    def token(self, kid, signed_by="", **claims):
        fields = {"iss": ISSUER, "aud": AUDIENCE, "sub": "dora", "exp": time.time() + 600}
        key = self._keys[signed_by or kid]
        return jwt.encode({**fields, **claims}, key, "ES256", headers={"kid": kid})


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    made = Keys(tmp_path_factory.mktemp("issuer"))
    made.publish("first")
    return made


@pytest.fixture(scope="module")
def cluster(keys):
    issuers = keys.path.with_name("issuers.toml")
    issuers.write_text(
        f'[[issuer]]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\njwks = "keys.json"\n'
    )
    with MiniCluster(3, 1, secure=True, options={"jwt_issuers": str(issuers)}) as made:
        yield made


def add(cluster, name, *words):
    done = subprocess.run(
        [sys.executable, "-m", "nyala", "user", "add", name, *words], text=True,
        input=f"{PASSWORD}\n", capture_output=True, timeout=within(120),
        env={**os.environ, "NYALA_MASTERS": cluster.masters},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def ca_of(cluster):
    return Path(cluster.dir, "certs", "ca.crt").read_bytes()


def join_addresses(cluster):
    made = layout.load(cluster.dir)
    assert made is not None
    return made.join_addresses


def attempt(cluster, host, name="", **proof):
    """Log in at the first master, from an address of loopback; return the error, or None.

    Args:
        cluster: the cluster.
        host: address that the connection comes from.
        name: of the user.
        **proof: password, or token.
    """
    context = ssl.create_default_context(cadata=ca_of(cluster).decode())
    to, port = join_addresses(cluster)[0].split(":")
    login = pb.LoginRequest(name=name, **proof)
    raw = pb.JoinRequest(csr=new_request()[1], login=login).SerializeToString()
    with (
        socket.create_connection((to, int(port)), later(30), (host, 0)) as plain,
        context.wrap_socket(plain, server_hostname=to) as link,
        link.makefile("rb") as answers,
    ):
        link.sendall(struct.pack("<I", len(raw)) + raw)
        (length,) = struct.unpack("<I", answers.read(4))
        answer = pb.JoinResponse.FromString(answers.read(length))
    return status.from_proto(answer.error) if answer.HasField("error") else None


def resident(cluster, name):
    """Return the resident memory of a server in bytes."""
    pid = Path(f"{cluster.data_dir(name)}.pid").read_text().split()[0]
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def audited(cluster, name):
    """Return the lines of the audit log of a server about logins, whose chain is verified."""
    path = Path(cluster.data_dir(name), "audit", "audit.log")
    if not path.exists():
        return []
    verify(str(path))
    lines = map(json.loads, path.read_text().splitlines())
    return [x for x in lines if x["method"].endswith("/Login")]


class Flood:
    """Guesses of passwords by several hosts, of users that exist and of others, until all were made."""

    def __init__(self, cluster):
        self.seen: Counter[str] = Counter()
        self._cluster = cluster
        self._threads = ThreadPoolExecutor(len(GUESSERS))
        self._work = [self._threads.submit(self._run, n, h) for n, h in enumerate(GUESSERS)]

    def _run(self, number, host):
        for guess in range(GUESSES):
            name = "ann" if guess % 2 and host != HOME else f"user{number}-{guess}"
            err = attempt(self._cluster, host, name, password=f"guess {guess}")
            self.seen[type(err).__name__] += 1

    @property
    def running(self):
        return not all(w.done() for w in self._work)

    def end(self):
        for work in self._work:
            work.result(within(300))
        self._threads.shutdown()


def admitted(cluster, host, name, refused):
    """Log in with the right password; return whether it was done.

    Args:
        cluster: the cluster.
        host: address that the connection comes from.
        name: of the user.
        refused: gets what refused the login, but for a moment in which all masters' places were taken.
    """
    err = attempt(cluster, host, name, password=PASSWORD)
    if err is not None and "busy with other logins" not in err.message:
        refused.append(err.message)
    return err is None


def test_users_log_in_beside_guesses_of_others_and_memory_and_log_are_bounded(cluster):
    for name in ("ann", "bob"):
        add(cluster, name, "--role", "reader", "--password-stdin")
    assert attempt(cluster, HOME, "ann", password=PASSWORD) is None, "she is known at this host now"
    masters = [n for n in cluster.names if n.startswith("master")]
    before = {n: resident(cluster, n) for n in masters}
    refused: list[str] = []
    began, flood, rounds = time.monotonic(), Flood(cluster), 0
    try:
        while flood.running:
            wait_until(lambda: admitted(cluster, HOME, "ann", refused), "ann logs in at home")
            elsewhere = partial(admitted, cluster, f"127.0.1.{rounds % 200 + 1}", "bob", refused)
            wait_until(elsewhere, "bob logs in from a host where nobody guesses")
            rounds += 1
    finally:
        flood.end()
    assert attempt(cluster, HOME, "ann", password=PASSWORD) is None
    assert refused == []
    assert rounds > 3
    assert set(flood.seen) == {"Unauthenticated", "Throttled"}
    assert flood.seen.total() == len(GUESSERS) * GUESSES
    assert flood.seen["Throttled"] > GUESSES // 2
    for name, used in before.items():
        assert resident(cluster, name) < used + GROWN
    windows = 2 + (time.monotonic() - began) // 60
    logs = {n: audited(cluster, n) for n in masters}
    refusals = Counter(
        x["about"]["peer_host"]
        for lines in logs.values() for x in lines if x["event"] == "result" and x["result"] != "OK"
    )  # fmt: skip
    assert refusals.keys() >= set(GUESSERS)
    assert max(refusals[h] for h in GUESSERS) <= CALLS_OF_CALLER * windows
    of_followers = sorted(len(lines) for lines in logs.values())[:-1]
    # Masters remember the leader for logins; while all its places are taken, they ask the others too.
    assert sum(of_followers) < flood.seen.total()


def test_keys_of_an_issuer_are_replaced_under_logins_and_a_removed_key_ends(cluster, keys):
    add(cluster, "dora", "--without-password")
    stopped, hosts = threading.Event(), iter(range(1, 250))
    errors: list[NyalaError] = []
    done: Counter[str] = Counter()
    published = ["first"]

    def log_in_always():
        while not stopped.is_set():
            kid = published[-1]  # the next file has it too
            err = attempt(cluster, "127.0.3.1", token=keys.token(kid))
            done[kid] += err is None
            errors.extend(filter(None, [err]))

    def logged_in(kid, wanted):
        return bool(errors) or done[kid] >= wanted

    thread = threading.Thread(target=log_in_always)
    thread.start()
    try:
        for kid, with_ in (("second", ("first", "second")), ("first", ("second", "first"))) * 3:
            wanted = done[kid] + 3
            keys.publish(*with_)
            published.append(kid)
            wait_until(partial(logged_in, kid, wanted), "logins go on")
        keys.publish("first")  # what remains; the second one is removed
        removed = attempt(cluster, f"127.0.2.{next(hosts)}", token=keys.token("second"))
        assert isinstance(removed, Unauthenticated)
        assert "does not name one of the keys" in removed.message
        wanted = done["first"] + 3
        wait_until(partial(logged_in, "first", wanted), "logins go on")
        now = time.time()
        for made, why in (
            (keys.token("first", signed_by="foreign"), "signature"),
            (keys.token("foreign"), "one of the keys"),
            (keys.token("first", iss="another"), "issuer"),
            (keys.token("first", aud="another"), "audience"),
            (keys.token("first", exp=now - 60), "expired"),
            (keys.token("first", nbf=now + 120), "not valid yet"),
            (jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "sub": "dora", "exp": now + 600}, "", "none",
                        headers={"kid": "first"}), "signature"),
        ):  # fmt: skip
            err = attempt(cluster, f"127.0.2.{next(hosts)}", token=made)
            assert isinstance(err, Unauthenticated), why
            assert not isinstance(err, Throttled)
            assert why in err.message
            assert made not in err.message
    finally:
        stopped.set()
        thread.join(within(60))
    assert not errors, errors[0]
    assert all(cluster.running(n) for n in cluster.names)
