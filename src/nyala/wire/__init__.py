"""Communication between processes: gRPC and Flight, the peer port and the stream port, and their limits."""

import os

# gRPC reads this as it is imported, so it stands before every module of this room. Its fork handlers
# abort a child now and then when a call is under way at a fork (a driver that starts Spark's JVM).
# Nothing here goes on across a fork: a client refuses to.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
