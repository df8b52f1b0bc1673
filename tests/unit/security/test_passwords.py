"""Passwords of users: what is refused, their hashes, and the bound on failed logins."""

import hashlib

import pytest

from nyala.common.errors import InvalidArgument, Unauthenticated
from nyala.security.accounts import attempts
from nyala.security.accounts.attempts import LoginAttempts
from nyala.security.accounts.passwords import check_new, hash_of, matches
from nyala.security.identity import CALLER, PeerIdentity
from nyala.security.principal import AccessRole, Principal

GOOD = "correct horse battery"
SALT = bytes(range(16))


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("", "0 characters, and at least 12"),
        ("short-pass1", "11 characters, and at least 12"),
        ("x" * 257, "257 characters, and at most 256"),
        ("abababababababab", "fewer than 5 different characters"),
        ("Annabelle-123", "little more than the name"),
    ],
)
def test_weak_password_is_refused_with_the_reason_and_without_itself(password, why):
    with pytest.raises(InvalidArgument, match=why) as found:
        check_new("annabelle", password)
    assert not password or password not in str(found.value)


def test_long_password_is_taken():
    check_new("ann", GOOD)
    check_new("ann", "ünïcødé, and more of it")


def test_hash_matches_its_password_only():
    known = hash_of(GOOD, SALT)
    assert matches(GOOD, known)
    assert not matches(GOOD + " ", known)
    assert not matches(GOOD, None)
    assert hash_of(GOOD, bytes(16)).digest != known.digest


def test_same_letters_in_another_unicode_form_match():
    assert matches("re\u0301sume\u0301 of the year", hash_of("r\u00e9sum\u00e9 of the year", SALT))


def test_user_without_account_costs_one_hash_as_others_do(monkeypatch):
    """The time of an answer does not show whether there is an account."""
    computed = []
    scrypt = hashlib.scrypt

    def counted(raw, **parameters):
        computed.append((parameters["n"], parameters["r"], parameters["p"]))
        return scrypt(raw, **parameters)

    known = hash_of(GOOD, SALT)
    monkeypatch.setattr(hashlib, "scrypt", counted)
    matches("a wrong password", known)
    matches("a wrong password", None)
    assert computed[0] == computed[1]


class Clock:
    def __init__(self):
        self.us = 0

    def __call__(self):
        return self.us

    def advance(self, seconds):
        self.us += int(seconds * 1_000_000)


def refused(bound, user="ann", host="10.0.0.1"):
    try:
        bound.begin(user, host)
    except Unauthenticated as err:
        return "wait" in err.message
    return False


def test_failures_of_a_user_have_to_wait_longer_and_longer():
    clock = Clock()
    bound = LoginAttempts(clock)
    assert not any(refused(bound) for _ in range(attempts.FREE_OF_USER))
    waits = []
    for _ in range(8):
        waited = 0
        while refused(bound):
            clock.advance(1)
            waited += 1
        waits.append(waited)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert not refused(bound, user="bob", host="10.0.0.2")


def test_first_login_does_not_wait_for_a_guesser_at_another_host():
    clock = Clock()
    bound = LoginAttempts(clock)
    for _ in range(1_000):
        refused(bound)
        clock.advance(0.1)
    assert refused(bound)
    assert not refused(bound, host="home"), "a mistake"
    assert not refused(bound, host="home")
    bound.succeeded("ann", "home")
    assert not refused(bound, host="home"), "known there from now on"


def guesses(host_at):
    """Return how many passwords of a user are tried within an hour by one who tries ten in each second.

    Args:
        host_at: returns the host of a try.
    """
    clock = Clock()
    bound, tried = LoginAttempts(clock), 0
    for number in range(10 * 3_600):
        tried += not refused(bound, host=host_at(number))
        clock.advance(1 / 10)
    return tried


def test_guessers_with_many_hosts_have_twice_the_guesses_of_one_at_most():
    alone = guesses(lambda _: "10.0.0.1")
    assert 60 <= alone <= 75
    assert guesses(lambda n: f"10.0.{n % 200}.{n % 9}") <= 2 * alone


def test_host_that_tries_many_users_has_to_wait():
    bound = LoginAttempts(Clock())
    assert not any(refused(bound, f"user{n}") for n in range(attempts.FREE_OF_HOST))
    assert refused(bound, "another")
    assert not refused(bound, "another", host="10.0.0.2")


def test_login_that_succeeds_ends_the_wait_and_old_failures_are_forgotten():
    clock = Clock()
    bound = LoginAttempts(clock)
    for _ in range(100):
        assert not refused(bound)
        bound.succeeded("ann", "10.0.0.1")
    for _ in range(attempts.FREE_OF_USER):
        refused(bound)
    assert refused(bound)
    clock.advance(attempts.FORGOTTEN_S + 1)
    assert not any(refused(bound) for _ in range(attempts.FREE_OF_USER))


def test_user_who_has_logged_in_from_a_host_is_not_kept_out_by_failures_of_others():
    clock = Clock()
    bound = LoginAttempts(clock)
    assert not refused(bound, host="home")
    bound.succeeded("ann", "home")
    for n in range(500):
        refused(bound, host=f"10.0.0.{n % 7}")  # a guesser elsewhere
        refused(bound, user=f"user{n}", host="home")  # and another user of this host
        clock.advance(0.5)
    assert refused(bound, user="bob", host="home")
    assert refused(bound, host="elsewhere")
    for _ in range(50):
        assert not refused(bound, host="home")
        bound.succeeded("ann", "home")
    assert not any(refused(bound, host="home") for _ in range(attempts.FREE_OF_USER))
    assert refused(bound, host="home"), "guesses from there have to wait too"


def test_memory_of_failures_is_bounded(monkeypatch):
    monkeypatch.setattr(attempts, "KEPT", 10)
    bound = LoginAttempts(Clock())
    for n in range(100):
        bound.begin(f"user{n}", f"host{n}")
        bound.succeeded(f"user{n}", f"host{n}")
    assert all(len(kept) <= 10 for kept in vars(bound)["_failed"].values())


def test_many_hosts_do_not_make_the_failures_of_users_forgotten(monkeypatch):
    monkeypatch.setattr(attempts, "KEPT", 10)
    bound = LoginAttempts(Clock())
    for n in range(2 * attempts.FREE_OF_USER):  # those that come first, and those of further hosts
        assert not refused(bound, host=f"host{n}")
    for n in range(9):
        bound.begin(f"user{n}", f"other{n}")
        bound.begin(f"user{n}", f"third{n}")
    assert refused(bound, host="host")


def test_login_that_is_withdrawn_counts_for_nobody():
    bound = LoginAttempts(Clock())
    for _ in range(100):
        bound.withdraw(bound.begin("ann", "10.0.0.1"))
    assert not any(refused(bound) for _ in range(attempts.FREE_OF_USER))
    assert refused(bound)


def test_host_counts_for_the_server_that_names_it_only():
    bound = LoginAttempts(Clock())

    def at(server):
        who = Principal("a" * 32, AccessRole.SERVER, server)
        CALLER.set(PeerIdentity(who, 1, 0, 1 << 40))
        return attempts.host_seen("10.0.0.1")

    try:
        for n in range(attempts.FREE_OF_HOST):
            assert not refused(bound, f"user{n}", at("tserver-1"))
        assert refused(bound, "another", at("tserver-1"))
        assert not refused(bound, "another", at("tserver-2"))
    finally:
        CALLER.set(None)
    assert attempts.host_seen("10.0.0.1") == "10.0.0.1"
