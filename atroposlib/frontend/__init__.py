"""Pages for people to read."""
