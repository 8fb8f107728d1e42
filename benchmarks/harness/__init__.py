"""What the benchmarks share: servers, the sides that are compared, how figures are told, kept and shown."""
