"""A bench to try prompts and rewards on: question, answer, every reward with its parts and why, by hand or in a row."""
