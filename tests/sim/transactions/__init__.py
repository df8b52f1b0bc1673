"""Transactions of real tablet servers under a scripted coordinator."""
