"""Verbs that measure and diagnose."""
