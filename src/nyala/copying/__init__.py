"""Tablet copies over the public port: the protocol of `replica/copy`, as calls between servers."""
