"""Bundles: splits read pages into documents, each with its kind and its patient."""
