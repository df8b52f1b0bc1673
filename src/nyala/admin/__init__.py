"""Services for orders about replicas, used by tablet servers and masters."""
