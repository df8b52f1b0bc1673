"""Files of a certificate that is issued again: they fit together at any time, also for other processes."""

import shutil
from datetime import timedelta

import pytest

from nyala.client.login import reissue, store
from nyala.client.login.exchange import Issued
from nyala.security import authority as authorities
from nyala.security.authorities import bundle
from nyala.security.authority import load
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles
from nyala.security.identity import identity_of_pem
from nyala.security.principal import AccessRole
from nyala.security.signing_request import new_request, public_key_of, request_for
from tests.unit.security.certificates import authority, user_files


def login(folder):
    """Return the files of a login, of which certificate and key are one."""
    key, csr = new_request()
    signed = load(authority()).sign(
        public_key_of(csr), AccessRole.READER, "ann", (), timedelta(hours=1)
    )
    return store.write(folder, Issued(load(authority()).certificate_pem, signed, key, ()))


def files(folder):
    """Return the files of `nyala cert user`."""
    given = user_files(AccessRole.READER)
    return CredentialFiles(
        *(str(shutil.copy(p, folder)) for p in (given.ca, given.cert, given.key))
    )


@pytest.mark.parametrize("make", [login, files])
def test_files_fit_together_after_each_write(tmp_path, monkeypatch, make):
    known = Credentials(make(tmp_path))
    old = load(authority())
    new = bundle.successor(old).authority
    key = public_key_of(request_for(known.pem.key))
    signed = new.sign(key, AccessRole.READER, "ann", (), timedelta(hours=1))
    write, writes = authorities.write_private, []

    def checked(path, content):
        write(path, content)
        writes.append(Credentials(known.files).principal)

    monkeypatch.setattr(reissue, "write_private", checked)
    both = new.certificate_pem + old.certificate_pem
    reissue.replace(known, both, signed)
    assert known.refresh()
    assert identity_of_pem(known.pem.cert).authority == bundle.key_id(new.certificate)
    reissue.replace(known, new.certificate_pem, b"")
    assert len(writes) == 3
    reissue.replace(Credentials(known.files), new.certificate_pem, b"")
    assert len(writes) == 3, "nothing has changed"
    assert Credentials(known.files).pem.ca == new.certificate_pem
