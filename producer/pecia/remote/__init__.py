"""Access to a fleet behind a gateway. It replaces the three stores for both kinds of client."""
