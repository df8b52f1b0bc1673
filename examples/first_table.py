"""The README's first table, against a cluster started with `nyala up` (or NYALA_MASTERS)."""

import os

import pyarrow as pa

import nyala

with nyala.connect(os.environ.get("NYALA_MASTERS", "127.0.0.1:7051")) as client:
    schema = pa.schema([("host", pa.string()), ("ts", pa.int64()), ("value", pa.float64())])
    table = client.create_table(
        "metrics",
        schema,
        primary_key=["host", "ts"],
        partition=nyala.Partition(hash=[nyala.Hash(["host"], 4)]),
        replicas=3,
        exist_ok=True,
    )
    table.upsert([{"host": "a", "ts": 1, "value": 0.5}, {"host": "b", "ts": 1, "value": 1.5}])
    before = client.now()
    table.update([{"host": "a", "ts": 1, "value": 9.0}])

    print(table.get({"host": "a", "ts": 1}))
    print(table.scan(where="value > 1", order=True).to_pandas())
    print(table.scan(at=before).to_arrow())
    print(table.changes(since=before).to_arrow())
    with table.hold(before, ttl=3600):
        print(table.scan(at=before).count())
    print(client.sql("select host, avg(value) from metrics group by host"))
