"""How long a test waits."""

WAIT_S = 480.0
"""Until what must come is there: no statement on how long it takes, but enough for a machine under a load of thirty."""
