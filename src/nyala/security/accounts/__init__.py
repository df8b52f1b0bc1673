"""Accounts of users: hashes of passwords, and bounds on failed logins."""
