"""Engines: turn pixels into text behind one interface."""
