"""TabletMap and EnsembleServerList: each change is one call, compared with a map of single keys."""

import random
from itertools import pairwise

import pytest

from nyala.ram.ids import LAST_HASH, ServerId, equal_ranges
from nyala.ram.server_list import EnsembleServerList, ServerStatus
from nyala.ram.tablet_map import TabletMap, mapping
from nyala.wire.proto import ram_pb2 as pb

KEYS = sorted({0, LAST_HASH, *(random.Random(7).randrange(LAST_HASH) for _ in range(60))})


def owners(tablets: TabletMap, table_id: int) -> dict[int, ServerId]:
    found = {key: tablets.lookup(table_id, key) for key in KEYS}
    return {key: ServerId.of(t.master) for key, t in found.items() if t is not None}


@pytest.mark.row("S3.4")
@pytest.mark.parametrize("seed", range(20))
def test_lookup_agrees_with_a_map_of_single_keys_after_each_change(seed):
    rng, tablets = random.Random(seed), TabletMap()
    model: dict[int, dict[int, ServerId]] = {}
    for step in range(60):
        change = rng.choice(["add", "split", "split", "recover", "remove"])
        table_id = rng.choice([*model, 0]) if model else 0
        if change == "add":
            servers = [ServerId(rng.randint(1, 5), 1) for _ in range(rng.randint(1, 6))]
            ranges = equal_ranges(len(servers))
            pieces = [mapping(*r, s) for r, s in zip(ranges, servers, strict=True)]
            number = tablets.next_id
            tablets.add_table(pb.Table(id=number, name=f"t{number}", tablets=pieces))
            spans = list(zip(ranges, servers, strict=True))
            model[number] = {k: s for k in KEYS for r, s in spans if r[0] <= k <= r[1]}
        elif change == "split":
            before = tablets.changes
            at = rng.choice(KEYS[1:])
            tablets.split(table_id, at)
            tablets.split(table_id, at)
            assert table_id == 0 or tablets.changes > before
        elif change == "recover" and table_id:
            lost, taker = ServerId(rng.randint(1, 5), 1), ServerId(6, step + 1)
            owned = [t for t in tablets.owned_by(lost) if t.table_id == table_id]
            tablets.recovered(table_id, lost, [mapping(t.first, t.last, taker) for t in owned])
            model[table_id] = {k: taker if s == lost else s for k, s in model[table_id].items()}
        elif change == "remove" and table_id:
            tablets.remove_table(table_id)
            tablets.remove_table(table_id)
            del model[table_id]
            assert tablets.lookup(table_id, 0) is None
            assert tablets.next_id > table_id
        assert {n: owners(tablets, n) for n in tablets.tables} == model
        for table in tablets.tables.values():
            edges = [(t.first, t.last) for t in table.tablets]
            assert (edges[0][0], edges[-1][1]) == (0, LAST_HASH)
            assert all(a[1] + 1 == b[0] for a, b in pairwise(edges))


@pytest.mark.row("S3.6")
def test_crash_and_the_new_version_are_one_change():
    servers = EnsembleServerList()
    for n in (1, 2):
        up = pb.ServerUp(id=ServerId(n, n).message(), roles=["master"], update_version=n)
        servers.up(up)
    versions = [v for v, _ in servers.updates()]
    servers.crashed(pb.ServerChange(id=ServerId(1, 1).message(), update_version=3))
    assert (servers.version, servers.servers[ServerId(1, 1)].status) == (3, ServerStatus.CRASHED)
    assert [v for v, _ in servers.updates()] == [*versions, 3]
    servers.crashed(pb.ServerChange(id=ServerId(1, 1).message(), update_version=3))
    assert servers.version == 3, "a replay of the record changes nothing"
