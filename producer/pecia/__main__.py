"""`python -m pecia`."""

from pecia.cli import main

main()
