"""Folders of processes of an ensemble with certificates."""

import pytest

from tests.unit.cli.support.verbs import nyala
from tests.unit.security.certificates import server_files


@pytest.mark.parametrize("role", ["coordinator", "server"])
def test_process_with_certificates_does_not_start_without_a_folder_for_its_revoked_ones(role):
    words = ("--address", "127.0.0.1:12345", "--masters", "127.0.0.1:1", *server_files().options)
    status, _, err = nyala("ram", role, "run", *words)
    assert (status, "keeps the list of revoked ones" in err, "--dir" in err) == (2, True, True)


def test_damaged_list_of_revoked_certificates_keeps_a_process_from_starting(tmp_path):
    (tmp_path / "revoked").write_text("[1]")
    words = ("--address", "127.0.0.1:12345", "--masters", "127.0.0.1:1", "--dir", str(tmp_path))
    status, _, err = nyala("ram", "server", "run", *words, *server_files().options)
    assert status != 0
    assert "the list of revoked certificates" in err
