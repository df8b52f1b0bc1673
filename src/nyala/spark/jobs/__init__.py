"""Jobs on Spark: functions that take a session, and `python -m nyala.spark.jobs NAME`."""

from nyala.spark.jobs.backups import backup, restore
from nyala.spark.jobs.comparison import checksum, compare
from nyala.spark.jobs.copy_table import copy
from nyala.spark.jobs.file_export import export_files
from nyala.spark.jobs.file_import import import_files
from nyala.spark.jobs.generated_rows import generate
from nyala.spark.jobs.linked_list import verify

__all__ = [
    "backup",
    "checksum",
    "compare",
    "copy",
    "export_files",
    "generate",
    "import_files",
    "restore",
    "verify",
]
