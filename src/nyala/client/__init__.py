"""The client's public names, which `nyala` re-exports."""

from nyala.client.client import Client, connect
from nyala.client.results import PartlyWritten, RowErrors, WriteResult
from nyala.client.scan import Scan
from nyala.client.scan_token import ScanToken
from nyala.client.table import Table

__all__ = [
    "Client",
    "PartlyWritten",
    "RowErrors",
    "Scan",
    "ScanToken",
    "Table",
    "WriteResult",
    "connect",
]
