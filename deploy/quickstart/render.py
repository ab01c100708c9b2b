"""What ./quickstart shows: one moving line while a run goes on, one table at the end."""

import json
import sys


def size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return "%d %s" % (count, unit) if unit == "B" else "%.1f %s" % (count, unit)
        count /= 1024.0
    return ""


class Progress:
    """Follows the JSON lines that worker 0 writes; on a terminal one line moves, elsewhere each epoch prints one."""

    def __init__(self, path, codec, epochs):
        self._path, self._codec, self._epochs = path, codec, epochs
        self._offset, self._rest = 0, ""
        self._terminal = sys.stdout.isatty()
        self._printed_epoch = 0

    def update(self):
        try:
            with open(self._path) as file:
                file.seek(self._offset)
                text = file.read()
                self._offset = file.tell()
        except FileNotFoundError:
            return
        lines = (self._rest + text).split("\n")
        self._rest = lines.pop()
        for line in lines:
            if line.strip():
                self._show(json.loads(line))

    def _show(self, record):
        end_of_epoch = record.get("test_accuracy") is not None
        if not end_of_epoch and not self._terminal:
            return
        ratio = record["push_raw_bytes"] / max(1, record["push_wire_bytes"])
        accuracy = record["test_accuracy"] if end_of_epoch else record.get("accuracy", 0.0)
        form = "  %-10s epoch %2d/%d  loss %.4f  %s accuracy %.4f  step %6.2f ms  pushed %10s  pulled %10s  ratio %6.1f"
        text = form % (self._codec, record["epoch"], self._epochs, record["loss"], "test" if end_of_epoch else "    ",
                       accuracy, record["step_ms"], size(record["push_wire_bytes"]), size(record["pull_wire_bytes"]),
                       ratio)
        if self._terminal:
            sys.stdout.write("\r\x1b[2K" + text)
        else:
            sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def close(self):
        self.update()
        if self._terminal:
            sys.stdout.write("\n")


def table(runs):
    """Ratios are against the first run if that is the uncompressed one."""
    base = runs[0]["wire_bytes_push"] if runs[0]["codec"] == "none" else None
    head = ("codec", "test accuracy", "seconds", "pushed", "of fp32", "pulled", "steps")
    rows = [head]
    for run in runs:
        share = "%.2f %%" % (100.0 * run["wire_bytes_push"] / base) if base else "-"
        rows.append((run["codec"], "%.4f" % run["test_accuracy"], "%.1f" % run["seconds"],
                     size(run["wire_bytes_push"]), share, size(run["wire_bytes_pull"]), str(run["steps"])))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                       for i, (cell, width) in enumerate(zip(row, widths))) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
