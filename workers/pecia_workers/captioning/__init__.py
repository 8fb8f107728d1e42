"""Video: from a claimed segment to its caption, and from all captions to a summary."""
