"""`nyala ram`: commands about an ensemble: coordinators, servers, tables."""
