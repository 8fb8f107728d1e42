"""A fleet behind a gateway: what takes the place of the three stores, for both kinds of client."""
