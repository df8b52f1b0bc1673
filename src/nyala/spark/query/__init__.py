"""SQL of Spark over tables of a cluster, of which only the columns and rows that it needs are read."""
