"""Runs: work under faults on one system, seed after seed."""
