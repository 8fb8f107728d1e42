"""The operators' verbs of the `pecia` command, found by entry points (group `pecia.commands`)."""
