"""Keys of authorities on masters: transfer between them, and files during and after a rotation."""

import os
import shutil
from dataclasses import replace

import pytest

from nyala.common.errors import Corrupt, Forbidden, InvalidArgument
from nyala.security.authorities import bundle
from nyala.security.authorities.handover import Receiver, seal
from nyala.security.authorities.keyring import ABANDONED_S, Keyring
from nyala.security.authority import load, write_private
from tests.unit.security.certificates import authority


@pytest.fixture(scope="module")
def old():
    return load(authority())


@pytest.fixture(scope="module")
def new(old):
    return bundle.successor(old)


@pytest.fixture
def folder(tmp_path):
    """The folder of a master with the key of the old authority."""
    for name in ("ca.crt", "ca.key"):
        shutil.copy(f"{authority()}/{name}", tmp_path)
    return tmp_path


def test_key_reaches_a_master_that_proves_that_it_has_the_old_one(old, new):
    wanted = new.authority.certificate
    receiver = Receiver(old.key, wanted)
    sealed = seal(new.authority.key, wanted, old.certificate, receiver.proof)
    found = receiver.open(sealed)
    assert found.private_numbers() == new.authority.key.private_numbers()
    with pytest.raises(InvalidArgument, match="cannot be decrypted"):
        Receiver(old.key, wanted).open(sealed)
    changed = replace(sealed, content=sealed.content[:-1] + bytes([sealed.content[-1] ^ 1]))
    with pytest.raises(InvalidArgument, match="cannot be decrypted"):
        receiver.open(changed)
    with pytest.raises(InvalidArgument, match="cannot be used"):
        receiver.open(replace(sealed, public=b"no key"))


def test_key_is_not_sent_without_a_proof_for_this_transfer(old, new):
    wanted, other = new.authority.certificate, bundle.successor(old).authority.certificate
    without_key = Receiver(new.authority.key, wanted)  # another key than the old one
    for_another = Receiver(old.key, other)
    stolen = replace(Receiver(old.key, wanted).proof, public=without_key.proof.public)
    for proof in (without_key.proof, for_another.proof, stolen):
        with pytest.raises(Forbidden, match="does not prove"):
            seal(new.authority.key, wanted, old.certificate, proof)


def test_other_key_than_that_of_the_certificate_is_not_kept(old, new):
    wanted = new.authority.certificate
    receiver = Receiver(old.key, wanted)
    with pytest.raises(InvalidArgument, match="not that of the new authority"):
        receiver.open(seal(old.key, wanted, old.certificate, receiver.proof))


def test_keyring_has_both_keys_until_the_old_authority_is_retired(folder, old, new):
    keys, wanted = Keyring(str(folder)), new.authority.certificate
    newest, links = bundle.key_id(wanted), bundle.parse(new.link)
    assert keys.first.certificate == old.certificate
    assert keys.authority(wanted, links) is None
    keys.add(new.authority.key)
    assert keys.ids == sorted([newest, bundle.key_id(old.certificate)])
    again = Keyring(str(folder))
    found = again.authority(wanted, links)
    assert found is not None
    assert found.key.private_numbers() == new.authority.key.private_numbers()
    assert {p.stat().st_mode & 0o777 for p in folder.glob("*.key")} == {0o600}
    write_private(folder / "ca.crt", new.authority.certificate_pem)
    for _ in range(2):
        again.settle(newest, new.link, 0.0)
        assert sorted(p.name for p in folder.iterdir()) == ["ca.crt", "ca.key", "ca.links"]
    assert again.ids == [newest]
    assert load(str(folder)).key.private_numbers() == new.authority.key.private_numbers()


def test_key_of_the_next_authority_is_kept_while_no_server_trusts_it_yet(folder, old, new):
    """The masters settle the last rotation every two seconds, also while the keys of the next are sent."""
    keys, third = Keyring(str(folder)), bundle.successor(new.authority)
    second, newest = (bundle.key_id(a.authority.certificate) for a in (new, third))
    keys.add(new.authority.key)
    write_private(folder / "ca.crt", new.authority.certificate_pem)
    keys.settle(second, new.link, 0.0)
    keys.add(third.authority.key)
    keys.settle(second, new.link, 0.0)
    assert keys.ids == sorted([second, newest])
    assert Keyring(str(folder)).ids == sorted([second, newest])
    keys.settle(newest, new.link + third.link, 0.0)
    assert sorted(p.name for p in folder.iterdir()) == ["ca.crt", "ca.key", "ca.links"]
    assert keys.ids == [newest]


def test_key_of_an_aborted_rotation_is_removed_and_the_present_one_never(folder, old, new):
    keys = Keyring(folder)
    (before,) = keys.ids
    keys.add(new.authority.key)
    newest = bundle.key_id(new.authority.certificate)
    shared = Keyring(folder)  # of another master
    for ring in (keys, shared):
        ring.discard([newest, before, "0" * 40])
        assert ring.ids == [before]
    assert sorted(os.listdir(folder)) == ["ca.crt", "ca.key"]
    assert Keyring(folder).first.certificate_pem == old.certificate_pem


def test_key_of_a_rotation_that_was_never_written_is_removed_once_it_is_old(folder, old, new):
    """Its leader master ended before; nobody trusts the authority, and a later rotation makes another one."""
    keys, abandoned = Keyring(str(folder)), bundle.successor(old)
    for made in (new, abandoned):
        keys.add(made.authority.key)
    newest = bundle.key_id(new.authority.certificate)
    left = bundle.key_id(abandoned.authority.certificate)
    written_s = (folder / f"ca-{left}.key").stat().st_mtime
    write_private(folder / "ca.crt", new.authority.certificate_pem)
    keys.settle(newest, new.link, written_s + ABANDONED_S)
    assert keys.ids == sorted([newest, left])
    keys.settle(newest, new.link, written_s + ABANDONED_S + 1)
    assert (keys.ids, Keyring(str(folder)).ids) == ([newest], [newest])
    assert load(str(folder)).key.private_numbers() == new.authority.key.private_numbers()


def test_key_of_an_earlier_rotation_is_removed_too(folder, new):
    """A master that was down at the end of one rotation, and until the end of the next."""
    keys, third = Keyring(str(folder)), bundle.successor(new.authority)
    for made in (new, third):
        keys.add(made.authority.key)
    newest = bundle.key_id(third.authority.certificate)
    write_private(folder / "ca.crt", third.authority.certificate_pem)
    keys.settle(newest, new.link + third.link, 0.0)
    assert sorted(p.name for p in folder.iterdir()) == ["ca.crt", "ca.key", "ca.links"]
    assert (keys.ids, Keyring(str(folder)).ids) == ([newest], [newest])


def test_key_is_durable_with_its_name_before_it_counts(folder, new, monkeypatch):
    done = []
    for name in ("replace", "fsync"):
        real = getattr(os, name)

        def noted(*args, name=name, real=real):
            what = args[0]
            done.append(
                name if name == "replace" or os.path.isfile(f"/proc/self/fd/{what}") else "folder"
            )
            return real(*args)

        monkeypatch.setattr(os, name, noted)
    Keyring(str(folder)).add(new.authority.key)
    assert done == ["fsync", "replace", "folder"]


def test_old_key_stays_where_the_new_one_is_missing(folder, new):
    keys = Keyring(str(folder))
    keys.settle(bundle.key_id(new.authority.certificate), new.link, 0.0)
    assert sorted(p.name for p in folder.iterdir()) == ["ca.crt", "ca.key"]


def test_master_that_lacks_the_new_key_starts_with_the_old_one(folder, old, new):
    both = new.authority.certificate_pem + old.certificate_pem
    write_private(folder / "ca.crt", both)
    assert Keyring(str(folder)).first.certificate == old.certificate
    with pytest.raises(Corrupt, match=r"copy ca\.crt, ca\.key and ca\.links from a master"):
        load(str(folder))
    write_private(folder / "ca.crt", new.authority.certificate_pem)
    with pytest.raises(Corrupt, match=r"copy ca\.crt, ca\.key and ca\.links from a master"):
        Keyring(str(folder))
