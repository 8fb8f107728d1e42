"""Admission of requests to the engine: what they cost, and which run together."""
