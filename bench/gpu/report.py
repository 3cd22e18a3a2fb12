"""The report: a JSON file that is complete after each step, and a table for people."""

import json
import os

MOST_CHARACTERS = 12_000
FOR_THE_END = 600
LONGEST_LINE = 160


def table(rows):
    """Lines of columns; the first is left-aligned, the others right-aligned."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    ]


class Report:
    """Prints each step as it ends, and at the end a line for each. All together is no longer than MOST_CHARACTERS."""

    def __init__(self, path, about):
        self.path = path
        self.content = {"format": 1, **about, "finished": False, "seconds": 0, "steps": []}
        self.left = MOST_CHARACTERS - FOR_THE_END
        self.write()

    def write(self):
        """Replaces the file as a whole, so that one that is cut off is never seen."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1, default=str) + "\n")
        os.replace(part, self.path)

    def print(self, line):
        line = line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"
        if len(line) < self.left:
            print(line, flush=True)
        elif self.left > 0:
            print("… the rest is in the report", flush=True)
            self.left = 0
        self.left -= len(line) + 1

    def add(self, step, lines, seconds):
        self.content["steps"].append(step)
        self.content["seconds"] = round(seconds, 1)
        self.write()
        why = f": {step['reason']}" if step["reason"] else ""
        self.print(f"== {step['name']}: {step['status']} in {step['seconds']:.1f} s{why}")
        for line in lines:
            self.print(f"   {line}")

    def finish(self, seconds):
        self.content.update(finished=True, seconds=round(seconds, 1))
        self.write()
        counts = {}
        for step in self.content["steps"]:
            counts.setdefault(step["status"], []).append(step["name"])
        for status, names in counts.items():
            print(f"{status}: {', '.join(names)}")
        print(f"{seconds:.0f} s; all figures: {self.path}", flush=True)
