"""Clients of inference engines, and the recording of rollouts token by token."""
