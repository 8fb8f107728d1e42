"""The geometry of a page: ink, lines, order, tables, paragraphs, marks, coverage. It knows no file and no engine."""
