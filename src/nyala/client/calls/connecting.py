"""Arguments with which a client connects."""

import os
from collections.abc import Sequence
from typing import TypedDict

from nyala.client.checks import check_age, check_int, check_list, check_text, check_timeout
from nyala.client.core import SCAN_AHEAD_BYTES, ClientOptions
from nyala.client.credentials import given_files, remember
from nyala.client.write.writer import BatchLimits
from nyala.common.errors import InvalidArgument

ENVIRONMENT = "NYALA_MASTERS"


class ConnectArguments(TypedDict, total=False):
    """Arguments of `nyala.connect` after the first, which describes them."""

    timeout_ms: int
    batch_rows: int
    batch_bytes: int
    scan_batch_bytes: int
    scan_batch_rows: int
    scan_ahead_bytes: int
    write_ahead_bytes: int
    client_id: bytes | None
    since: int
    lookup_max_age_ms: int
    ca: str | None
    cert: str | None
    key: str | None
    user: str | None
    password: str | None
    login: str | None


def client_options(
    masters: str | Sequence[str] | None,
    *,
    timeout_ms: int = 60_000,
    batch_rows: int = 10_000,
    batch_bytes: int = 1 << 20,
    scan_batch_bytes: int = 1 << 20,
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
    """Return the masters' addresses and a client's options; files of certificates are remembered.

    Args:
        masters: as all others: see `nyala.connect`.
        timeout_ms: in milliseconds.
        batch_rows: rows.
        batch_bytes: bytes.
        scan_batch_bytes: bytes.
        scan_batch_rows: rows.
        scan_ahead_bytes: bytes.
        write_ahead_bytes: bytes.
        client_id: 16 bytes.
        since: hybrid time.
        lookup_max_age_ms: in milliseconds.
        ca: path.
        cert: path.
        key: path.
        user: name of an account.
        password: of it.
        login: addresses.

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
