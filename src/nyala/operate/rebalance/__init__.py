"""Even distribution of replicas and leaders over the tablet servers of a running cluster."""
