"""Collection of a bundle: what all servers that answer show of themselves."""

import asyncio
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

from google.protobuf.json_format import MessageToDict

from nyala.client.core import ClientCore
from nyala.common.errors import NyalaError
from nyala.common.version import VERSION
from nyala.env.monotonic import monotonic_us
from nyala.operate.doctor.collect import collect as doctor_facts
from nyala.operate.doctor.facts import Declared
from nyala.operate.doctor.plan import make_plan
from nyala.operate.ksck.check import check
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

ASK_MS = 5_000
PAGE_S = 10
"""Deadline of one page of a server, in seconds."""
LARGEST = 32 << 20
"""Maximum number of bytes of one page that are kept."""
PAGES = {
    "options.json": "/options?format=json",
    "threads.json": "/threads?format=json",
    "log.json": "/log?format=json",
    "anchors.json": "/anchors?format=json",
    "metrics.txt": "/metrics",
    "health.txt": "/healthz",
}
"""Pages of a server, by name of the file that keeps them."""
MANIFEST = "manifest.json"


async def collect(
    core: ClientCore, more: tuple[str, ...], tls: ssl.SSLContext | None
) -> dict[str, bytes]:
    """Return the files of a bundle by name. What could not be had is in the manifest, with the reason.

    Args:
        core: a client of the cluster.
        more: public addresses of further servers, for instance while no master leads.
        tls: for the web ports; None: they have no encryption.
    """
    files: dict[str, bytes] = {}
    missing: dict[str, str] = {}

    async def of_cluster(name: str, read: Awaitable[object]) -> None:
        try:
            files[name] = _json(await read)
        except NyalaError as err:
            missing[name] = err.message

    async def of_server(address: str) -> None:
        info = await _server(core, address)
        if isinstance(info, NyalaError):
            missing[address] = info.message
            return
        folder = f"servers/{info.role}-{info.uuid}"
        files[f"{folder}/info.json"] = _json(MessageToDict(info))
        for file, path in PAGES.items():
            try:
                if not info.web_address:
                    raise OSError("the server has no web port")
                files[f"{folder}/{file}"] = await asyncio.to_thread(
                    read_page, info.web_address, path, tls
                )
            except OSError as err:
                missing[f"{folder}/{file}"] = str(err) or repr(err)

    async def of_servers() -> None:
        await asyncio.gather(*(of_server(a) for a in await _addresses(core, more)))

    await asyncio.gather(
        of_servers(),
        of_cluster("ksck.json", _ksck(core)),
        of_cluster("ops.json", _ops(core)),
        of_cluster("doctor.json", _plan(core)),
    )
    files[MANIFEST] = _json(
        {
            "made_at": datetime.fromtimestamp(core.env.clock.wall_us() / 1e6, UTC).isoformat(),
            "version": VERSION,
            "masters": list(core.masters.known),
            "missing": missing,
        }
    )
    return files


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, default=str).encode()


async def _ksck(core: ClientCore) -> object:
    return (await check(core)).as_dict()


async def _ops(core: ClientCore) -> object:
    answer = await core.masters.call(
        methods.INSPECT_MASTER, pb.InspectMasterRequest(), timeout_ms=ASK_MS
    )
    return MessageToDict(answer)


async def _plan(core: ClientCore) -> object:
    plan = make_plan(await doctor_facts(core), Declared())
    return [step.as_dict(number) for number, step in enumerate(plan, 1)]


async def _addresses(core: ClientCore, more: tuple[str, ...]) -> list[str]:
    """Return the public addresses of all servers that are known, each once."""
    try:
        listed = [s.address for s in (await core.servers()).servers]
    except NyalaError:
        listed = list(core.masters.known)
    return list(dict.fromkeys([*listed, *more]))


async def _server(core: ClientCore, address: str) -> Any:
    """Return a server's registration, or its error."""
    try:
        return await core.env.rpc.call(
            address, methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=ASK_MS
        )
    except NyalaError as err:
        return err


def read_page(address: str, path: str, tls: ssl.SSLContext | None) -> bytes:
    """Return the content of a page. A text with status 503 is kept too: it has the reason.

    Args:
        address: of the web port.
        path: of the page.
        tls: as for `collect`.

    Raises:
        OSError: no answer, an incomplete one, an error instead of JSON, or more than `LARGEST` bytes.
    """
    url = f"{'http' if tls is None else 'https'}://{address}{path}"
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        *(() if tls is None else (urllib.request.HTTPSHandler(context=tls),)),
    )
    try:
        with opener.open(url, timeout=PAGE_S) as answer:
            return _content(answer)
    except urllib.error.HTTPError as err:
        with err:
            text = _content(err)
        if err.code == 503 and "format=json" not in path:
            return text
        plain = err.headers.get_content_type() == "text/plain"
        reason = " ".join(text[:300].decode(errors="replace").split()) if plain else err.reason
        raise OSError(f"status {err.code}: {reason}") from None
    except (http.client.HTTPException, ValueError) as err:
        raise OSError(f"the answer is not of a web server: {err!r}") from err


def _content(answer: Any) -> bytes:
    """Return the body of an answer. Raises OSError: it is too large, or takes too long."""
    end_us = monotonic_us() + PAGE_S * 1_000_000
    parts = bytearray()
    while part := answer.read1(1 << 16):
        parts += part
        if len(parts) > LARGEST or monotonic_us() > end_us:
            raise OSError(f"more than {LARGEST} bytes, or not complete after {PAGE_S} s")
    return bytes(parts)
