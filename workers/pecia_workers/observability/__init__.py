"""Observability of the fleet: metrics, traces, logs, Flower."""
