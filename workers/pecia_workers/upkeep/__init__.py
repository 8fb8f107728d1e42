"""Upkeep: recovery after faults, and retention. Any number of instances may run."""
