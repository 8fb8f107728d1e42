"""Review: people see what is in doubt beside the page's picture, and correct it."""
