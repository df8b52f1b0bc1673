"""Transactions: rows of any number of tablets and tables that become visible at one time, or never."""
