"""The client's public names, which `nyala` re-exports."""

from nyala.client.client import Client, connect
from nyala.client.feed.change_batch import ChangeBatch
from nyala.client.feed.change_feed import ChangeFeed
from nyala.client.journal.items import Entry, Invalidated, Key, Rebased, Synced
from nyala.client.journal.journal import Journal
from nyala.client.journal.log import Log
from nyala.client.modify.results import ChangeResult, PartlyChanged
from nyala.client.modify.values import expr
from nyala.client.results import PartlyWritten, RowErrors, WriteResult
from nyala.client.scan import Scan
from nyala.client.scan_token import ScanToken
from nyala.client.table import Table
from nyala.client.transactions.keys import StreamKey, TransactionToken
from nyala.client.transactions.transaction import Transaction, TransactionPart
from nyala.client.write.staging import StagedPart

__all__ = [
    "ChangeBatch", "ChangeFeed", "ChangeResult", "Client", "Entry", "Invalidated", "Journal",
    "Key", "Log", "PartlyChanged", "PartlyWritten", "Rebased", "RowErrors", "Scan", "ScanToken",
    "StagedPart", "StreamKey", "Synced", "Table", "Transaction", "TransactionPart",
    "TransactionToken", "WriteResult", "connect", "expr",
]  # fmt: skip
