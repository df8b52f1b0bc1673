"""Commands of nyala in processes of their own, and clients of users, for a cluster of a test."""

import os
import subprocess
import sys

import nyala
from nyala.security import issue
from nyala.security.files import CredentialFiles
from nyala.security.principal import AccessRole
from tests.waiting import within


def run(cluster, *words, env=(), answer=""):
    """Return the completed process of a command.

    Args:
        cluster: its masters are those of the command.
        words: of the command.
        env: further variables.
        answer: text of its standard input.
    """
    return subprocess.run(
        [sys.executable, "-m", "nyala", *words], text=True, capture_output=True, input=answer,
        timeout=within(120), env={**os.environ, "NYALA_MASTERS": cluster.masters, **dict(env)},
    )  # fmt: skip


def files_of(cluster, user, role=AccessRole.WRITER) -> CredentialFiles:
    """Return the files of a new certificate of a user."""
    return issue.user(f"{cluster.dir}/certs", f"{cluster.dir}/{user}", user, role)


def connected(cluster, user, role=AccessRole.WRITER, **more) -> nyala.Client:
    """Return a client of a user.

    Args:
        cluster: with certificates.
        user: name.
        role: in the certificate.
        **more: further arguments of `connect`.
    """
    files = files_of(cluster, user, role)
    return nyala.connect(cluster.masters, ca=files.ca, cert=files.cert, key=files.key, **more)
