"""Access of users to tables and journals."""
