"""AsyncAlter: an alteration of a table on an event loop."""

from nyala.aio.session import Session
from nyala.client.alter import AlterBuilder
from nyala.client.calls.altering import alter_table
from nyala.client.cluster.tablet_cache import OpenTable


class AsyncAlter(AlterBuilder):
    """A builder of table alterations: chain the steps, then await `commit`, which sends them.

    Args:
        session: the client.
        table: the table.
    """

    kind = "nyala.aio.AsyncAlter"

    def __init__(self, session: Session, table: OpenTable) -> None:
        self._session = session  # first, as it is what refuses to be pickled
        super().__init__(table)

    async def commit(self) -> None:
        """Apply all steps at once; raises as `nyala.Table.alter().commit`.

        If it is cancelled the table may have been altered, or may yet be: all steps, or none.
        """
        core = self._session.core()
        await core.caller.change(alter_table(core, self._table, self._steps.steps))
