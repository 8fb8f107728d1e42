"""How well a fleet reads and captions, measured on files whose content is known: what `pecia eval` prints."""
