"""Commands of scenarios that alter, drop and recall tables, and the tablet servers' answers.

journal J [replicas=N] [columns=N]   create a journal; columns: refused, only tables have them
journals | everything        ListTables of journals; of all kinds
kind=journal                 option of the commands below, and of describe: J must be a journal
add T COLUMN [op=N]          add a column
rename T NEW [op=N]          rename the table
replicas T N [op=N]          change how many replicas its tablets have
option T NAME VALUE          change an option
drop T [op=N] [reserve=S]    drop it, so that it can be recalled for S seconds
recall T [NEW] [op=N]        T as the transcript names it
T.N=LEADER/TERM^VERSION      in a report: the replica shows this schema version
"""

from nyala.master.catalog.records.tables import CatalogTable
from nyala.master.services.tables import MasterService
from nyala.wire.proto import nyala_pb2 as pb


class DdlCommands:
    """Part of `master_runner.Scenario`."""

    names: dict[str, str]

    def say(self, line: str) -> None:
        raise AssertionError("the scenario defines it")

    def service(self) -> MasterService:
        raise AssertionError("the scenario defines it")

    async def do_journal(self, rest: list[str]) -> None:
        options = dict(word.split("=") for word in rest[1:])
        spec = pb.TableSpec(name=rest[0], kind=1, replicas=int(options.get("replicas", 3)))
        for column in range(int(options.get("columns", 0))):
            spec.schema.columns.add(id=column, name=f"c{column}", type="int64")
        answer = await self.service().create_table(pb.CreateTableRequest(table=spec))
        self.say(f"-> {self.names[answer.table_id]}")

    async def do_journals(self, rest: list[str]) -> None:
        await self._list(pb.ListTablesRequest(kind=1))

    async def do_everything(self, rest: list[str]) -> None:
        await self._list(pb.ListTablesRequest(all_kinds=True))

    async def _list(self, request: pb.ListTablesRequest) -> None:
        for table in (await self.service().list_tables(request)).tables:
            self.say(f"-> {('table', 'journal')[table.kind]} {table.name} {table.state}")

    async def do_add(self, rest: list[str]) -> None:
        column = pb.Column(name=rest[1], type="int32", nullable=True)
        await self._alter(rest[0], pb.AlterStep(add_column=column), rest[2:])

    async def do_rename(self, rest: list[str]) -> None:
        await self._alter(rest[0], pb.AlterStep(rename_table=rest[1]), rest[2:])

    async def do_replicas(self, rest: list[str]) -> None:
        await self._alter(rest[0], pb.AlterStep(replicas=int(rest[1])), rest[2:])

    async def do_option(self, rest: list[str]) -> None:
        text = pb.AlterStep.Text(name=rest[1], text=rest[2])
        await self._alter(rest[0], pb.AlterStep(option=text), rest[3:])

    async def _alter(self, name: str, step: pb.AlterStep, rest: list[str]) -> None:
        request = pb.AlterTableRequest(name=name, steps=[step], kind=kind_of(rest))
        number(request.operation, b"a", rest)
        answer = await self.service().alter_table(request)
        self.say(f"-> {self.names[answer.table_id]} at version {answer.schema_version}")

    async def do_recall(self, rest: list[str]) -> None:
        ids = {name: found for found, name in self.names.items()}
        words = [word for word in rest[1:] if "=" not in word]
        request = pb.RecallTableRequest(
            id=ids[rest[0]], new_name="".join(words), kind=kind_of(rest)
        )
        number(request.operation, b"r", rest)
        answer = await self.service().recall_table(request)
        self.say(f"-> {self.names[answer.table_id]}")

    async def do_drop(self, rest: list[str]) -> None:
        options = dict(word.split("=") for word in rest[1:])
        request = pb.DropTableRequest(
            name=rest[0], reserve_seconds=int(options.get("reserve", 0)), kind=kind_of(rest)
        )
        number(request.operation, b"d", rest)
        answer = await self.service().drop_table(request)
        self.say(f"-> {self.names[answer.table_id]}")


def kind_of(words: list[str]) -> int:
    """Return the kind that a command is about."""
    return int("kind=journal" in words)


def number(operation: pb.OperationId, client: bytes, words: list[str]) -> None:
    """Set the number of an operation by the options of its command."""
    options = dict(word.split("=") for word in words if "=" in word)
    if "op" in options:
        operation.client, operation.sequence = client * 16, int(options["op"])


def state_text(table: CatalogTable) -> str:
    """Return the state of a table in a transcript."""
    version = table.spec.schema.version
    at = f" at version {version}" if version else ""
    return f"{table.state.name}{at}{', dropped for a time' if table.recallable else ''}"
