"""Upkeep: recovery after faults, relay and retention. Any number of instances may run."""
