"""Orders that every server obeys about replicas of its own, and what it says of them: masters too."""
