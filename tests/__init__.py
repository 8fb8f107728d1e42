"""Tests, by level: see README.md."""
