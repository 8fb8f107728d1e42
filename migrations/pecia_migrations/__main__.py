"""`python -m pecia_migrations`: how the supervisor brings PECIA_DATABASE_URL up to date."""

import os

from pecia_migrations import upgrade

if __name__ == "__main__":
    upgrade(os.environ["PECIA_DATABASE_URL"])
