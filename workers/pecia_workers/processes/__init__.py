"""How processes run: forked from a template, confined, registered as services."""
