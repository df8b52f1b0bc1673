"""Values that everyone shares: errors, ids, schemas, keys, partitions, predicates, options."""
