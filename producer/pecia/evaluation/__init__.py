"""Measures of reading and captioning on files whose content is known, for `pecia eval`."""
