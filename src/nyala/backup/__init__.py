"""Backups of tables as Parquet files: full and incremental ones, their restore, check and removal."""
