"""Transactions: the leader master as their coordinator."""
