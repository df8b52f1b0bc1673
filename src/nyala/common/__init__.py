"""Values shared by all packages: errors, ids, schemas, keys, partitions, predicates, options."""
