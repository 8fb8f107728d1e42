"""The operators' verbs of the `pecia` command."""
