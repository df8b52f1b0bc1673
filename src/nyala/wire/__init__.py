"""Communication between processes: gRPC and Flight, the peer port and the stream port, and their limits."""

import os

# gRPC reads this variable when it is imported, so it is set before any module of this package is. Its fork
# handlers sometimes abort a child if a call is in progress at the fork (a driver that starts Spark's JVM).
# Nothing in this package is used after a fork: a client raises an error in a forked child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
