"""Random queries over given tables: joins, sub-queries, common table expressions, windows, set operations.

The result of a query does not depend on the order of rows: no sums of floats, no row numbers among equal
rows, and a limit only with an order by all columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

LITERALS: Mapping[str, Sequence[str]] = {
    "int": ("0", "1", "2", "3", "-1", "7", "null"),
    "text": ("'a'", "'it''s'", "''", "'é\"'", "'b'", "null"),
    "date": ("date '2020-01-02'", "date '1969-12-31'", "null"),
    "moment": ("timestamp '2020-01-01 00:00:01'", "timestamp '1969-12-31 23:59:59.999999'", "null"),
    "decimal": ("1.50", "-2.25", "0.00", "null"),
    "flag": ("true", "false", "null"),
    "double": ("0.5", "1.0", "'nan'::double", "null"),
}
KINDS = tuple(LITERALS)


def quoted(name: str) -> str:
    """Return a name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Source:
    """Relation after `from`: its columns by kind, as expressions."""

    text: str
    columns: tuple[tuple[str, str], ...]

    def of(self, kind: str) -> list[str]:
        """Return the columns of a kind."""
        return [name for name, other in self.columns if other == kind]


@dataclass
class Queries:
    """Generator of random queries.

    Args:
        random: source of the choices.
        tables: kinds of columns by table and column name.
    """

    random: Random
    tables: Mapping[str, Mapping[str, str]]
    named: list[tuple[str, tuple[tuple[str, str], ...]]] = field(default_factory=list)
    aliases: int = 0

    def one(self) -> str:
        """Return a query."""
        kinds = self.kinds()
        text = self.query(kinds, 3)
        if self.random.random() < 0.3:
            text = f"select * from ({text}) z order by all limit {self.random.randrange(1, 9)}"
        return text

    def kinds(self) -> list[str]:
        return self.random.choices(KINDS, k=self.random.randrange(1, 4))

    def query(self, kinds: Sequence[str], depth: int) -> str:
        """Return a query with result columns c0, c1, ... of these kinds."""
        roll = self.random.random()
        if depth and roll < 0.15:
            word = self.random.choice(["union", "union all", "except", "intersect"])
            return f"({self.query(kinds, depth - 1)}) {word} ({self.query(kinds, depth - 1)})"
        if depth and roll < 0.35:
            return self.with_names(kinds, depth - 1)
        source = self.source(depth)
        where = f" where {self.predicate(source, depth)}" if self.random.random() < 0.7 else ""
        shape = self.random.random()
        if shape < 0.2:
            return self.grouped(kinds, source, where)
        items = ", ".join(self.item(k, source, depth) + f" as c{n}" for n, k in enumerate(kinds))
        return f"select {'distinct ' if shape < 0.3 else ''}{items} from {source.text}{where}"

    def with_names(self, kinds: Sequence[str], depth: int) -> str:
        mine = self.kinds()
        inner = self.query(mine, depth)  # may read the table hidden by its name
        name = self.random.choice(["w", "W2", *self.tables])
        self.named.append((name, tuple((f"c{n}", kind) for n, kind in enumerate(mine))))
        text = f"with {quoted(name)} as ({inner}) select * from ({self.query(kinds, depth)}) q"
        self.named.pop()
        return text

    def grouped(self, kinds: Sequence[str], source: Source, where: str) -> str:
        key = self.random.choice([name for name, _ in source.columns])
        items = []
        for number, kind in enumerate(kinds):
            one = self.scalar(kind, source)
            made = f"{self.random.choice(['min', 'max'])}({one})"
            if kind == "int":
                made = self.random.choice(
                    [made, "count(*)", f"count({one})", f"sum({one})::bigint"]
                )
            items.append(f"{made} as c{number}")
        having = " having count(*) > 1" if self.random.random() < 0.3 else ""
        if self.random.random() < 0.3:
            return f"select {', '.join(items)} from {source.text}{where}"
        return f"select {', '.join(items)} from {source.text}{where} group by {key}{having}"

    def source(self, depth: int) -> Source:
        """Return a table, a sub-query, or a join."""
        roll = self.random.random()
        if depth and roll < 0.25:
            left, right = self.source(depth - 1), self.source(0)
            kind = self.random.choice(["join", "left join", "full join", "semi join"])
            both = Source("", left.columns + right.columns)
            on = self.equal(left, right) if kind != "join" else self.predicate(both, 0)
            shown = left.columns if kind == "semi join" else both.columns
            return Source(f"{left.text} {kind} {right.text} on {on}", shown)
        self.aliases += 1
        alias = f"a{self.aliases}"
        if depth and roll < 0.45:
            kinds = self.kinds()
            inner = self.query(kinds, depth - 1)
            columns = tuple((f"{alias}.c{n}", k) for n, k in enumerate(kinds))
            return Source(f"({inner}) {alias}", columns)
        shadowed = {name for name, _ in self.named}
        choices = [
            *self.named,
            *((n, tuple(c.items())) for n, c in self.tables.items() if n not in shadowed),
        ]
        name, found = self.random.choice(choices)
        if name in shadowed:  # the innermost one of the name
            found = next(c for n, c in reversed(self.named) if n == name)
        written = name.upper() if name.isascii() and self.random.random() < 0.3 else name
        columns = tuple((f"{alias}.{quoted(n)}", k) for n, k in found)
        return Source(f"{quoted(written)} {alias}", columns)

    def equal(self, left: Source, right: Source) -> str:
        pairs = [(a, b) for a, k in left.columns for b, other in right.columns if k == other]
        return "{} = {}".format(*self.random.choice(pairs)) if pairs else "true"

    def scalar(self, kind: str, source: Source) -> str:
        columns = source.of(kind)
        if columns and self.random.random() < 0.85:
            return self.random.choice(columns)
        return self.random.choice(LITERALS[kind])

    def item(self, kind: str, source: Source, depth: int) -> str:
        one, other = self.scalar(kind, source), self.scalar(kind, source)
        cast = {"int": "bigint", "text": "text", "date": "date", "moment": "timestamp",
                "decimal": "decimal(10,2)", "flag": "boolean", "double": "double"}[kind]  # fmt: skip
        made = [
            one,
            one,
            one,
            f"coalesce({one}, {other})",
            f"case when {self.predicate(source, 0)} then {one} end",
        ]
        made.append(f"max({one}) over (partition by {self.scalar('int', source)})")
        if kind == "int":
            by = self.scalar(self.random.choice(KINDS), source)
            made += [f"rank() over (order by {by})", f"count(*) over (partition by {by})"]
        if kind == "flag":
            made.append(self.predicate(source, 0))
        if depth:
            inner = self.source(0)
            made.append(f"(select min({self.scalar(kind, inner)}) from {inner.text})")
        return f"cast({self.random.choice(made)} as {cast})"

    def predicate(self, source: Source, depth: int) -> str:
        """Return a condition over a source."""
        kind = self.random.choice(KINDS)
        one, other = self.scalar(kind, source), self.scalar(kind, source)
        literals = ", ".join(self.random.choices(LITERALS[kind], k=self.random.randrange(1, 4)))
        sign = self.random.choice(["=", "<>", "<", "<=", ">", ">=", "is distinct from"])
        made = [
            f"{one} {sign} {self.random.choice(LITERALS[kind])}", f"{one} {sign} {other}",
            f"{one} in ({literals})", f"{one} not in ({literals})", f"{one} is null",
            f"{one} between {self.random.choice(LITERALS[kind])} and {other}", "true",
            f"{one} is not null",
        ]  # fmt: skip
        if kind == "text":
            made += [
                f"{one} like 'a%'", f"length({one}) > 1", f"{one} like '%s'", f"{one} not like '_'",
                f"{one} ilike '%A%'", f"{one} like '%!%' escape '!'", f"({one} || {other}) ilike 'a_'",
            ]  # fmt: skip
        if kind == "int":
            made += [
                f"{one} % 2 = 1", f"{one} + 1 {sign} {other}", f"{one} * {other} - 1 between 0 and 9",
                f"{one} - {other} in (1, null)",
            ]  # fmt: skip
        if depth:
            left, right = self.predicate(source, depth - 1), self.predicate(source, depth - 1)
            inner = self.source(0)
            outer = self.equal(source, inner) if source.columns else "true"
            made += [
                f"({left} and {right})", f"({left} and {right})", f"({left} or {right})", f"not ({left})",
                f"{self.random.choice(['', 'not '])}exists (select 1 from {inner.text} where {outer})",
                f"{one} in (select {self.scalar(kind, inner)} from {inner.text})",
            ]  # fmt: skip
        return self.random.choice(made)
