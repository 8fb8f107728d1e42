"""Bundles: from pages as they were read to documents, each with its kind and its patient."""
