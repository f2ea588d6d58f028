"""Read answers out of text, and tell whether two of them say the same, in time linear in the length of the text."""
