"""Medians, a table, and a JSON file."""

import json
import os
import statistics


def median(values):
    return statistics.median(values)


def table(headings, rows):
    """Aligned columns; the first to the left, the others to the right."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [headings] + rows) for i in range(len(headings))]
    lines = []
    for row in [headings] + rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


def write_json(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
