"""The store of a tablet: columnar, versions as rows; it does not know that it is replicated."""
