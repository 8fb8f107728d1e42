"""Interfaces inside a worker: an engine, a part and its outcomes, an attempt and its time."""
