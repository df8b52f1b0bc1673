"""Requests to an ensemble on virtual time."""

import json
from typing import Any

from nyala.ram.calls import EnsembleClient
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.unit.ram.support.ensemble import SimEnsemble


async def started(e: SimEnsemble, *, coordinators: int = 2, servers: int = 3) -> None:
    """Start an ensemble, and wait until it is settled."""
    for n in range(coordinators):
        await e.coordinator(f"c{n}")
    for n in range(servers):
        await e.server(f"s{n}")
    await e.until(e.settled)


def create(name: str, span: int = 3) -> tuple[Any, Any]:
    """Return the request."""
    return methods.RAM_CREATE_TABLE, pb.CreateTableRequest(name=name, server_span=span)


def drop(name: str) -> tuple[Any, Any]:
    """Return the request."""
    return methods.RAM_DROP_TABLE, pb.DropTableRequest(name=name)


async def dump(client: EnsembleClient) -> Any:
    """Return the state of the leader."""
    found = await client.call(methods.RAM_DUMP, pb.DumpRequest(), 20_000)
    return json.loads(found.json)
