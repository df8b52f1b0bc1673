"""Tablet server: serves tablets to clients, executes orders of masters, and reports to every master."""
