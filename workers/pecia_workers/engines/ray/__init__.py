"""The engine that reads on a Ray cluster."""
