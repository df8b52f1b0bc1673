"""Splitting of scan tokens into smaller ones by size, at keys that a replica of each tablet chooses."""

import asyncio
import itertools

from nyala.client.deadline import Attempts, is_cut_short
from nyala.client.read.read_spec import ReadSpec
from nyala.client.read.token_reader import PARALLEL_TOKENS, Reader, location_of
from nyala.common.errors import InvalidArgument, OutcomeUnknown, Retryable, TimedOut
from nyala.env.env import Env
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2

ASK_TIMEOUT_MS = 5_000


def check_split(spec: ReadSpec, split_bytes: int) -> None:
    """Check that the tokens of a read can be split.

    Raises:
        InvalidArgument: the size is not positive, or the read cannot be split.
    """
    if (
        isinstance(split_bytes, bool)
        or not isinstance(split_bytes, int)
        or not 0 < split_bytes < 1 << 63
    ):
        raise InvalidArgument(
            f"split_bytes={split_bytes!r}: a positive number of bytes, for instance {64 << 20}; "
            "None: one token per tablet"
        )
    if spec.changes:
        raise InvalidArgument(
            "a change feed comes in order of time, not of key, and is not split: leave split_bytes out, or "
            "ask for several shorter intervals"
        )
    if spec.latest:
        raise InvalidArgument(
            "split_bytes: pieces of one tablet would be read at times of their own; "
            'use mode="snapshot", or at='
        )


async def split_all(
    env: Env, reader: Reader, tokens: list[pb.ScanToken], split_bytes: int
) -> list[pb.ScanToken]:
    """Split tokens into pieces, in token order and in key order within each.

    Args:
        env: clock, tasks and RPCs.
        reader: runs tokens.
        tokens: tokens of one scan.
        split_bytes: approximate bytes of one piece.

    Raises:
        InvalidArgument: the pieces would be too many.
        TimedOut: no replica of some tablet answered.
    """
    slots = asyncio.Semaphore(PARALLEL_TOKENS)

    async def one(token: pb.ScanToken) -> list[pb.ScanToken]:
        async with slots:
            keys = await _split_keys(env, reader, token, split_bytes)
        ends = itertools.pairwise([token.key_lower, *keys, token.key_upper])
        return [_piece(token, lower, upper) for lower, upper in ends]

    return [piece for pieces in await asyncio.gather(*map(one, tokens)) for piece in pieces]


async def _split_keys(
    env: Env, reader: Reader, token: pb.ScanToken, split_bytes: int
) -> list[bytes]:
    """Return the split keys of a tablet, from the first replica that answers, the leader first."""
    attempts = Attempts(env, token.timeout_ms or 60_000)
    location, last, tried = location_of(token), "no replica of the tablet is known", False
    request = reads_pb2.SplitKeyRangeRequest(token=token, split_bytes=split_bytes)
    while True:
        request.token.tablet_id = location.id
        for address in location.addresses():
            timeout_ms = max(1, min(ASK_TIMEOUT_MS, attempts.left_ms()))
            try:
                answer: reads_pb2.SplitKeyRangeResponse = await env.rpc.call(
                    address, methods.SPLIT_KEY_RANGE, request, timeout_ms=timeout_ms
                )
            except (Retryable, OutcomeUnknown) as err:
                if not tried or not is_cut_short(err, timeout_ms):
                    last, tried = f"{address}: {err.message}", True
                continue
            return list(answer.split_keys)
        if not await attempts.pause():
            raise TimedOut(
                f"no replica of tablet {token.tablet_id} returned split keys in time; at last: {last}. "
                "Check: nyala cluster ksck"
            )
        await reader.relocate(token, location, attempts)


def _piece(token: pb.ScanToken, lower: bytes, upper: bytes) -> pb.ScanToken:
    piece = pb.ScanToken()
    piece.CopyFrom(token)
    piece.key_lower, piece.key_upper = lower, upper
    return piece
