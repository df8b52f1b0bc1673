"""Certificates of a cluster, the identities that they prove, and what each may call."""
