"""Processes: forked from a template, confined, or run as registered services."""
