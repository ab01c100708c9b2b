"""What ./quickstart shows: one moving line while a run goes on, one table at the end."""

import json
import os
import sys


def size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return "%d %s" % (count, unit) if unit == "B" else "%.1f %s" % (count, unit)
        count /= 1024.0
    return ""


class Progress:
    """Follows the JSON lines that worker 0 writes; on a terminal one line moves, elsewhere each test prints one.

    text(record, tested): a subclass's, what a line says. TESTED: the key that has a value where the model was tested.
    step, steps: the last one that is done, and how many there will be.
    """

    TESTED = ""

    def __init__(self, path):
        self._path = path
        self._offset, self._rest = 0, ""
        self.step = self.steps = 0
        self._terminal = sys.stdout.isatty()

    def update(self):
        try:
            with open(self._path) as file:
                if os.fstat(file.fileno()).st_size < self._offset:   # a worker that came back begins a new one
                    self._offset, self._rest = 0, ""
                file.seek(self._offset)
                text = file.read()
                self._offset = file.tell()
        except FileNotFoundError:
            return
        lines = (self._rest + text).split("\n")
        self._rest = lines.pop()
        records = [json.loads(line) for line in lines if line.strip()]
        for i, record in enumerate(records):
            self._show(record, i + 1 == len(records))

    def _show(self, record, last):
        self.step, self.steps = record["step"], record["steps"]
        tested = record.get(self.TESTED) is not None
        if self._terminal and (last or tested):
            sys.stdout.write("\r\x1b[2K" + self.text(record, tested))
        elif tested:
            sys.stdout.write(self.text(record, tested) + "\n")
        sys.stdout.flush()

    def say(self, line):
        """A line of its own, that stays."""
        sys.stdout.write(("\r\x1b[2K" if self._terminal else "") + line + "\n")
        sys.stdout.flush()

    def close(self):
        self.update()
        if self._terminal:
            sys.stdout.write("\n")


class ImageProgress(Progress):
    TESTED = "test_accuracy"

    def __init__(self, path, codec, epochs):
        super().__init__(path)
        self._codec, self._epochs = codec, epochs

    def text(self, record, tested):
        ratio = record["push_raw_bytes"] / max(1, record["push_wire_bytes"])
        accuracy = record["test_accuracy"] if tested else record.get("accuracy", 0.0)
        form = ("  %-10s epoch %2d/%d  loss %.4f  %s accuracy %.4f  step %6.2f ms  worker 0 pushed %10s  pulled %10s  "
                "ratio %6.1f")
        return form % (self._codec, record["epoch"], self._epochs, record["loss"], "test" if tested else "    ",
                       accuracy, record["step_ms"], size(record["push_wire_bytes"]), size(record["pull_wire_bytes"]),
                       ratio)


class ClickProgress(Progress):
    TESTED = "test_auc"

    def __init__(self, path, epochs):
        super().__init__(path)
        self._epochs = epochs

    def text(self, record, tested):
        form = "  epoch %2d/%d  step %4d/%d  loss %.4f  test AUC %s  step %6.2f ms  worker 0 pushed %10s  pulled %10s"
        return form % (record["epoch"], self._epochs, record["step"], record["steps"], record["loss"],
                       "%.4f" % record["test_auc"] if tested else "   -  ", record["step_ms"],
                       size(record["push_wire_bytes"]), size(record["pull_wire_bytes"]))


def table(rows):
    """rows: the head, then the others; cells are text. The first column is flush left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                       for i, (cell, width) in enumerate(zip(row, widths))) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
