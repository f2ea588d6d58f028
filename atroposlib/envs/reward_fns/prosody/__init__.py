"""Sanskrit prosody: syllables, their weights, and metres."""
