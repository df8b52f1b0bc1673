"""Arguments with which a client connects."""

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from nyala.client.checks import check_age, check_int, check_list, check_text, check_timeout
from nyala.client.core import SCAN_AHEAD_BYTES, ClientOptions
from nyala.client.credentials import given_files, remember
from nyala.client.write.writer import BatchLimits
from nyala.common.errors import InvalidArgument

ENVIRONMENT = "NYALA_MASTERS"
P = ParamSpec("P")
T = TypeVar("T")
Chosen = tuple[str, ClientOptions]
"""Addresses of the masters, and the options of a client."""


def client_options(
    masters: str | Sequence[str] | None = None,
    *,
    timeout_ms: int = 60_000,
    batch_rows: int = 10_000,
    batch_bytes: int = 1 << 20,
    scan_batch_bytes: int = 0,
    scan_batch_rows: int = 0,
    scan_ahead_bytes: int = SCAN_AHEAD_BYTES,
    write_ahead_bytes: int = 64 << 20,
    client_id: bytes | None = None,
    since: int = 0,
    lookup_max_age_ms: int = 10_000,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    user: str | None = None,
    password: str | None = None,
    login: str | None = None,
) -> tuple[str, ClientOptions]:
    """Return the masters' addresses and the options of a client; files of certificates are remembered.

    Args:
        masters: "host:port,host:port,..." or a list; one reachable master is enough. None: the
            environment variable NYALA_MASTERS.
        timeout_ms: deadline of each call, with all its retries; of a write of many rows: since the last
            batch of it that was acknowledged.
        batch_rows: most rows of one operation on one tablet.
        batch_bytes: most bytes of such an operation; at most the servers' write_max_bytes.
        scan_batch_bytes: size of the batches in which scans arrive; 0: as much as the server has memory for,
            4 MiB at most (its option scan_batch_bytes).
        scan_batch_rows: most rows of such a batch; 0: no limit.
        scan_ahead_bytes: most bytes that scans receive before their callers take them, of all tablets
            together; one batch of each tablet that is read always has room.
        write_ahead_bytes: most bytes of rows of one write that are sent, or wait, and are not acknowledged.
        client_id: 16 bytes. A second process that gives the same id and repeats the same writes in
            the same order has each take effect once (a retried Spark task). With certificates, the same id
            of another user is another client.
        since: with `client_id`, a time from `now()` before which no process wrote under it. A tablet that has
            dropped client sessions refuses, as SessionExpired, what may have been executed for one of them.
        lookup_max_age_ms: largest age of tables and tablet locations from another master while the leader
            master does not answer; 0: only the leader's are used.
        ca: file with the certificate of the cluster's authority. None, as for `cert` and `key`: as an
            earlier client of this process and cluster, else NYALA_CA, NYALA_CERT and NYALA_KEY; without any:
            no encryption.
        cert: file with the certificate of the user.
        key: file with the private key of it.
        user: name of an account, instead of `cert` and `key`: this logs in, keeps the certificate private to
            the process, and renews it. The authority is that of `ca`, of NYALA_CA, or of an earlier login.
            None, as for `password`: NYALA_USER and NYALA_PASSWORD, unless NYALA_CERT is set.
        password: of the account.
        login: "host:port,..." at which it logs in: the masters' join addresses. None: NYALA_LOGIN, else
            those of an earlier login or of nyala up, else the ports 3000 above the masters'.

    Raises:
        InvalidArgument: no address, or one that is not host:port; files that are invalid, or not all three; a
            login at a cluster whose authority is not known.
        Unauthenticated: unknown user or wrong password.
    """
    given = masters if masters is not None else os.environ.get(ENVIRONMENT, "")
    addresses = (
        given if isinstance(given, str) else ",".join(map(str, check_list("masters", given)))
    )
    check_text("masters", addresses)
    if client_id is not None and (not isinstance(client_id, bytes) or len(client_id) != 16):
        raise InvalidArgument(f"client_id={client_id!r}: it has to be 16 bytes")
    check_text("login", login or "")
    check_timeout(timeout_ms)
    check_int("batch_rows", batch_rows, 1)
    check_int("batch_bytes", batch_bytes, 1)
    check_int("scan_batch_bytes", scan_batch_bytes)
    check_int("scan_batch_rows", scan_batch_rows)
    check_int("scan_ahead_bytes", scan_ahead_bytes)
    check_int("write_ahead_bytes", write_ahead_bytes)
    check_int("since", since)
    check_age("lookup_max_age_ms", lookup_max_age_ms)
    files = given_files(addresses, ca, cert, key, user, password, login)
    if files is not None:
        remember(addresses, files)
    options = ClientOptions(
        timeout_ms=int(timeout_ms),
        limits=BatchLimits(batch_rows, batch_bytes, write_ahead_bytes),
        client_id=client_id,
        keep_results=client_id is not None,
        since=since,
        scan_batch_bytes=scan_batch_bytes,
        scan_batch_rows=scan_batch_rows,
        lookup_max_age_ms=lookup_max_age_ms,
        scan_ahead_bytes=scan_ahead_bytes,
    )
    return addresses, options


def with_arguments_of(
    choose: Callable[P, Chosen],
) -> Callable[[Callable[[Callable[[], Chosen]], T]], Callable[P, T]]:
    """Return a decorator of functions that open a client: they get the arguments of another function.

    Args:
        choose: returns the options of the client; the documentation of its arguments becomes theirs.
    """

    def decorate(connect: Callable[[Callable[[], Chosen]], T]) -> Callable[P, T]:
        @functools.wraps(connect)
        def opens(*args: P.args, **options: P.kwargs) -> T:
            signature.bind(*args, **options)
            return connect(functools.partial(choose, *args, **options))

        made = inspect.signature(connect).return_annotation
        signature = inspect.signature(choose).replace(return_annotation=made)
        arguments = (inspect.getdoc(choose) or "").partition("\n\n")[2]
        opens.__doc__ = f"{inspect.getdoc(connect)}\n\n{arguments}\n"
        vars(opens)["__signature__"] = signature
        return opens

    return decorate
