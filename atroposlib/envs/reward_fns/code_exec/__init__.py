"""Code of completions, and how it is tested in a box."""
