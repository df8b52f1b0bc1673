"""Commands of certificates, and the network of a server process."""
