"""One running member of a group: its Raft node, and the parts that perform the node's `Ready`."""
