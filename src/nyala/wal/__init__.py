"""Write-ahead log, one for all groups of a data directory, and consensus metadata."""
