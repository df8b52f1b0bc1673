"""Disaster recovery: findings, a plan of steps, and their performance."""
