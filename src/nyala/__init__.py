"""nyala: a replicated, mutable, columnar table store for Python people.

`import nyala` loads nothing heavy; each public name brings what it needs on first use (PEP 562).
"""

from importlib import import_module

__version__ = "0.2.0"

_CLIENT = (
    "connect", "Client", "Table", "Scan", "ScanToken", "ChangeFeed", "ChangeBatch",
    "WriteResult", "RowErrors", "PartlyWritten",
    "Journal", "Log", "Entry", "Invalidated", "Rebased", "Synced", "Key",
    "ChangeResult", "PartlyChanged", "expr",
    "Transaction", "TransactionPart", "TransactionToken", "StagedPart", "StreamKey",
)  # fmt: skip
_HOMES = {
    **dict.fromkeys(_CLIENT, "nyala.client"),
    **dict.fromkeys(
        ("ConditionFailed", "JournalFull", "LogGone", "QuotaExceeded", "TransactionDenied"),
        "nyala.common.errors",
    ),
    "FarTime": "nyala.common.values.far_times",
    **dict.fromkeys(("Hash", "Range", "Partition"), "nyala.common.partitioning.partition_spec"),
    "errors": "nyala.common",
    "aio": "nyala",
}
__all__ = ["__version__", *_HOMES]  # types of all of them: __init__.pyi


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'nyala' has no attribute {name!r}")
    if name in ("errors", "aio"):  # modules
        return import_module(f"{_HOMES[name]}.{name}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
