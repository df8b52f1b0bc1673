"""Services for orders about replicas, on tablet servers and masters."""
