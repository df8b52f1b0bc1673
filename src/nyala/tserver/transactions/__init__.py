"""Transactions at a tablet server: staging, orders of the coordinator, and what leaders do by themselves."""
