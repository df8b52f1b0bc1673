"""A client closed by another thread while a stream of rows is written: the error reports the progress."""

from typing import Any

import pytest

from nyala.client.results import PartlyWritten
from nyala.common.errors import InvalidArgument, Unavailable
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import opened
from tests.unit.client.support.requests import connection
from tests.unit.client.support.uploads import some


@pytest.mark.parametrize("written", [0, 2])
def test_upload_reports_progress_when_client_is_closed(written, monkeypatch):
    client, requests = connection(monkeypatch)

    def source():
        for n in range(4):
            if n == written:
                client.close()
            yield some(n * 10, n * 10 + 10)

    with pytest.raises((PartlyWritten, Unavailable)) as raised:
        client.upload(opened(), pb.UPSERT, source(), False)
    error: Any = raised.value
    assert "closed" in str(error)
    assert isinstance(error, PartlyWritten) == (requests.rows > 0)
    if requests.rows:
        assert error.rows == requests.rows
        assert error.next_row == requests.rows + len(error.unknown) + len(error.not_written)
    with pytest.raises(InvalidArgument, match="closed"):
        client.upload(opened(), pb.UPSERT, source(), False)


def test_upload_of_stream_reports_failing_source(monkeypatch):
    client, requests = connection(monkeypatch)
    try:
        parts = (some(n, n + 10) for n in range(0, 5_000, 10))
        assert client.upload(opened(), pb.UPSERT, parts, False).rows == 5_000
        assert requests.rows == 5_000

        def breaks(rows: int) -> Any:
            yield from [some(0, 10)] * rows
            raise ValueError("the source broke")

        with pytest.raises(PartlyWritten, match="10 rows are written, then: ValueError") as raised:
            client.upload(opened(), pb.UPSERT, breaks(1), False)
        assert raised.value.next_row == 10
        with pytest.raises(ValueError, match="the source broke"):
            client.upload(opened(), pb.UPSERT, breaks(0), False)
    finally:
        client.close()
