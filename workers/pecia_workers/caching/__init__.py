"""The result cache: what was read before, in the same way, is not read again."""
