"""Changes of the members of a group (dissertation 4), and what follows from them."""
