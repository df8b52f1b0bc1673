"""`nyala cluster ksck`: health of servers, tablets and replicas, and checksums of replicas."""
