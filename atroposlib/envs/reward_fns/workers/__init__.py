"""Where rewards compute: threads that never hold up the end of the program, and processes that can be killed."""
