"""The witness: compares a language model's text with an independent reading of the same page."""
