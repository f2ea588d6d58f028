"""Runs of the whole system on one machine: engine, trajectory server, environment and trainer as child processes."""
