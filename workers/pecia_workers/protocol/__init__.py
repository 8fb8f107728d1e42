"""What the parts of a worker agree about: an engine, a part and its outcomes, an attempt and its time."""
