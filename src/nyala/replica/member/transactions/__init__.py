"""Transactions at a member: what is prepared in its log, and the operations that its leader proposes."""
