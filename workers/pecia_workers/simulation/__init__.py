"""Simulation: the worker's own policies over models of an engine, in simulated time."""
