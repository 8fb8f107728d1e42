"""Bundles of scans: where their documents begin, of which kind they are, and whose."""
