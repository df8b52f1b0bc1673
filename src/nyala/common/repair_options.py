"""How masters give tablets back the replicas that they lost: the part of `common/options.py` about it."""

from typing import Annotated, Any

import msgspec

from nyala.common.copy_options import CopyOptions


def _number(least: int, most: int, sentence: str) -> Any:
    return msgspec.Meta(ge=least, le=most, description=sentence)


class RepairOptions(CopyOptions, frozen=True, kw_only=True):
    """Repair of tablets, and the copies that it makes."""

    repair: Annotated[
        str,
        msgspec.Meta(
            pattern="^(on|off)$",
            description="Whether masters replace lost replicas, and remove those that are too many.",
        ),
    ] = "on"
    repair_interval_ms: Annotated[
        int, _number(10, 3_600_000, "A master looks this often at which tablets need repair.")
    ] = 1000
    member_failed_after_ms: Annotated[
        int,
        _number(
            100, 604_800_000, "A replica that its leader has not heard for so long is replaced."
        ),
    ] = 300_000
    repairs_per_server: Annotated[
        int, _number(1, 1000, "Replicas that are given to one server at a time by repair.")
    ] = 4
    repairs_max: Annotated[
        int, _number(1, 100_000, "Replicas that are given to servers at a time in all by repair.")
    ] = 64
