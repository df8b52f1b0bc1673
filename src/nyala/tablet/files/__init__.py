"""Files of a tablet: their format, column blocks, disk rowsets, the manifest."""
