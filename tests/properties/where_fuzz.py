"""Fuzz of `where`: any bytes give a predicate with the correct rows, or a clear refusal.

    python -m tests.properties.where_fuzz [--seed N] [--inputs 100000] [--minutes M]

Texts are random bytes, tokens of the language in any order, and damaged valid expressions.
The rows of a parsed text are counted on a small tablet and by the model; an error has a position.
"""

import argparse
import random
import sys
import time
from typing import Any

import pyarrow as pa

from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.expressions.where import parse
from nyala.common.schema import from_arrow
from nyala.tablet.files.replicated_ops import RowOp
from nyala.wire.convert import predicate_from_proto, predicate_to_proto
from tests.properties.support.predicate_reference import evaluate_reference
from tests.properties.support.tablet_rows import POOLS
from tests.sim.world.files import SimDisk
from tests.unit.tablet.support.tablet_support import Driver

KINDS = [k for k in POOLS if k != pa.timestamp("us", "UTC")]
SCHEMA = from_arrow(
    pa.schema([*((f"c{n}", kind) for n, kind in enumerate(KINDS)), ("order by", pa.int8())]),
    ["c4", "c0"],
)
TEXT = r"""
    and or not in between is null like true false date timestamp ( ) , = <> != < <= > >= + - * / % ; --
    /* */ || :: c0 c1 c2 c3 c4 c5 c6 c7 c8 c9 c10 c11 c12 C0 "c0" "order by" "order 0 1 -1 127 128 2.5
    ilike escape symmetric == '%a_' '\_%' 2 - -
    1e9 1e-9 9223372036854775807 9223372036854775808 0.01 999.99 'a' 'a%' 'a\%' 'a_' '' '''' ' '2024-02-29'
    '0001-01-01 00:00:00' '9999-12-31' '2024-02-30' x'00' x'0' x'zz' x' inf nan infinity é 🦓 \ ' " ` $1 ?
"""
WORDS = [*TEXT.split(), "\0", "\ud800", "\x7f", "\u202e", " ", "\t", "\n"]
GOOD = [
    "c0 = 1", "c3 >= -9223372036854775808 and c3 < 0", "c4 in ('a', 'b', '') or c4 is null",
    "not (c4 like 'a%')", "c5 = x'00' or c5 > x'6161'", "c6 between date '0001-01-01' and date '2024-02-29'",
    "c7 > timestamp '1969-12-31 23:59:59.999999'", "c8 in (0.01, -999.99) and c9 <> 0",
    "c10 == true", "c0 + 1 > c1 * 2 - c2", "c3 - 1 <= c3 % 3", "c8 * 2 = c9 + c0 or c9 - c8 < 0.5",
    "c0 / c1 is null", "-c0 between c1 - 1 and c2 + 1", "c11 + c0 < c12 / 2", "c12 % 2 = 1.5",
    "c4 like '%a%'", "c4 not like '_' escape '!'", "c4 ilike 'A%' or c4 || 'b' like 'a_b'", "c6 < c7",
    "c4 in ('a', null)", "c0 not in (1, null)", "c0 in (c1, c2, 1)", "(c0 + c1) * 2 in (0, 1)",
    "c3 * c3 > c8 * 1000", "c1 = c2 and c5 <> x'00'", "c10 and not false",
    "c11 <= 1.5 or c12 = -2", '"order by" is not null', "1 <= c1 and c2 = -32768",
]  # fmt: skip
BATCH = 500


def tablet() -> Driver:
    """A tablet with rows of every pool's values, in two rowsets and in memory."""
    chance = random.Random(1)
    driver = Driver("data/t", SCHEMA, files=SimDisk(chance).mount())
    for _ in range(3):
        driver.flush()
        rows: list[dict[str, Any]] = []
        for _ in range(12):
            row = {c.name: chance.choice([*POOLS[c.type], None]) for c in SCHEMA.value_columns}
            rows.append({**row, "c4": chance.choice(POOLS[pa.string()]), "c0": chance.randrange(3)})
        driver.write(RowOp.UPSERT, rows)
    return driver


def text(chance: random.Random) -> str:
    """Return one input."""
    kind = chance.randrange(10)
    if kind < 2:
        return chance.randbytes(chance.choice([1, 3, 20, 200])).decode("utf-8", "surrogateescape")
    if kind < 5:
        return " ".join(chance.choices(WORDS, k=chance.randrange(12)))
    if kind == 5:
        return chance.choice(["(", "not ", "c0=1 or ", "-", "'", '"', "c4 in (", "1,", "\\"]) * (
            chance.choice([2, 70, 3_000])
        )
    parts = chance.choices(GOOD, k=chance.choice([1, 1, 2, 4]))
    made = parts[0]
    for part in parts[1:]:
        made = f"({made}) {chance.choice(['and', 'or', 'and not', 'OR'])} {part}"
    return made if kind < 8 else harmed(made, chance)


def harmed(good: str, chance: random.Random) -> str:
    """Return a text with bytes flipped, removed, doubled or replaced by tokens."""
    data = bytearray(good.encode())
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[place] ^= 1 << chance.randrange(8)
            case 1:
                del data[place : place + chance.randrange(1, 4)]
            case 2:
                data[place:place] = data[place : place + chance.randrange(1, 20)]
            case 3:
                data[place : place + 1] = chance.choice(WORDS).encode("utf-8", "surrogatepass")
        data = data or bytearray(b" ")
    return data.decode("utf-8", "surrogateescape")


def check(driver: Driver, rows: list[dict[Any, Any]], where: str) -> bool:
    """Check one input; return whether it was an expression."""
    refusal = None
    try:
        tree = parse(where, SCHEMA)
    except (InvalidArgument, NotFound) as err:
        refusal = err
    if refusal is not None:
        position = int(refusal.details["position"])
        assert 1 <= position <= len(where) + 1, f"position {position} in {len(where)} characters"
        assert 10 < len(refusal.message) < 1_000, refusal.message
        refusal.message.encode()  # the message must be encodable
        return False
    again = predicate_from_proto(predicate_to_proto(tree), SCHEMA)
    expected = sum(evaluate_reference(tree, row) is True for row in rows)
    assert driver.tablet.view().count(driver.now, again) == expected, f"{tree}"
    return True


def run(seed: int, inputs: int, minutes: float = 60) -> tuple[int, int]:
    """Check inputs; return their number, and the number of expressions."""
    chance, driver = random.Random(seed), tablet()
    ids = {c.name: c.id for c in SCHEMA.columns}
    rows = [{ids[n]: v for n, v in row.items()} for row in driver.rows()]
    end, good = time.monotonic() + 60 * minutes, 0
    for number in range(inputs):
        if number % BATCH == 0 and time.monotonic() > end:
            return number, good
        where = text(chance)
        try:
            good += check(driver, rows, where)
        except BaseException:
            print(f"where text {number} of seed {seed}: {where!r}", file=sys.stderr)
            raise
    return inputs, good


def main() -> int:
    """Check inputs until one fails or the time has passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=60)
    asked = parser.parse_args()
    judged, good = run(asked.seed, asked.inputs, asked.minutes)
    print(f"fuzz of where: {judged} texts, {good} of them expressions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
