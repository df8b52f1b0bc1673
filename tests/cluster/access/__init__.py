"""Access of users to tables on real servers."""
