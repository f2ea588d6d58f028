"""What becomes of a finished conversation: sequences to train on, a grade, a line of an evaluation."""
