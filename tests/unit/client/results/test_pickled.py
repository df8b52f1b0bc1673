"""Errors and scan tokens are unchanged after pickling, copy and deep copy."""

import copy
import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.client.client import Client
from nyala.client.connection import Connection
from nyala.client.journal.journal import Journal
from nyala.client.journal.log import Log
from nyala.client.results import ERRORS, RowErrors, WriteResult
from nyala.client.scan_token import ScanToken
from nyala.client.table import Table
from nyala.common.errors import NyalaError
from nyala.wire.proto import nyala_pb2 as pb

WAYS = (
    copy.copy,
    copy.deepcopy,
    *(
        lambda e, p=p: pickle.loads(pickle.dumps(e, p))
        for p in range(2, pickle.HIGHEST_PROTOCOL + 1)
    ),
)


def every(base: type[NyalaError]) -> list[type[NyalaError]]:
    """Return all error classes that the client imports, those of other packages included."""
    return [base, *(found for sub in base.__subclasses__() for found in every(sub))]


OURS = [kind for kind in every(NyalaError) if kind.__module__.startswith("nyala.")]
TABLES = st.lists(
    st.fixed_dictionaries({"row": st.integers(0, 9), "code": st.text(), "message": st.text()})
).map(lambda rows: pa.Table.from_pylist(rows, ERRORS))


@given(
    st.sampled_from(OURS),
    st.text(),
    st.dictionaries(st.text(), st.text()),
    st.dictionaries(st.sampled_from(["errors", "more"]), TABLES | st.integers() | st.text()),
    st.sampled_from(WAYS),
)
def test_pickled_errors_keep_all_fields(kind, message, details, more, way):
    error = kind(message, details)
    for name, value in more.items():
        setattr(error, name, value)
    found = way(error)
    assert type(found) is kind
    assert str(found) == str(error)
    assert vars(found) == vars(error)
    assert found.details is not error.details or way is copy.copy


def test_pickled_error_cases_cover_all_error_classes():
    assert RowErrors in OURS
    assert len(OURS) > 20


@pytest.mark.parametrize("way", WAYS)
def test_row_errors_keep_their_table(way: Any):
    result = WriteResult(1, pa.table([[3], ["not_found"], ["no row"]], schema=ERRORS), 7)
    with pytest.raises(RowErrors) as raised:
        result.raise_for_errors()
    assert way(raised.value).errors.equals(result.errors)


@pytest.mark.parametrize("way", WAYS)
def test_pickled_scan_token_is_equal(way: Any):
    message = pb.ScanToken(tablet_id="t", masters=["m:1"], at=7, replicas=["a:1", "b:1"])
    connection: Any = threading.Lock()  # of a client, which cannot be pickled
    found = way(ScanToken(message, connection))
    assert bytes(found) == message.SerializeToString()
    assert (found.tablet_id, found.at, found.replicas) == ("t", 7, ("a:1", "b:1"))


@pytest.mark.parametrize("way", WAYS[1:])  # a shallow copy shares the connection
def test_pickled_handle_is_refused_with_what_to_pass_instead(way: Any):
    connection, core = Connection.__new__(Connection), threading.Lock()
    some: Any = core
    opened: Any = SimpleNamespace(id="j")
    journal = Journal(connection, some, opened)
    for handle in (
        Client(connection),
        Table(connection, some),
        journal,
        Log(connection, some, some, journal.atomically),
        journal.atomically(),
    ):
        with pytest.raises(TypeError, match=r"Pass client.masters.*nyala.connect\(\)"):
            way(handle)
