"""Figures side by side, as narrow as they can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table


def aligned(rows: Sequence[Mapping[str, str]]) -> Table:
    """Return a table of rows that have the same columns; those that are empty throughout are left out.

    No figure is cut, however narrow the screen; words of the head go below each other.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in columns:
        widest = max(len(row[name]) for row in rows)
        left = rows[0][name].isalpha()
        table.add_column(name.strip(), justify="left" if left else "right", min_width=widest)
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table
