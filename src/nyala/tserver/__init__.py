"""A tablet server: tablets served to clients, orders obeyed, reports to every master."""
