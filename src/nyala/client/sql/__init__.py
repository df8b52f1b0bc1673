"""SQL queries over tables of a cluster, executed by DuckDB."""
