"""The report: a JSON file that is complete after each step, and a table for people."""

import json
import os

MOST_CHARACTERS = 12_000
LONGEST_LINE = 160


def table(rows):
    """Lines of columns; the first is left-aligned, the others right-aligned."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        for row in rows
    ]


def shortened(lines, most):
    """At most so many characters, with a line that says what is left out."""
    lines = [line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…" for line in lines]
    kept, used = [], 0
    for line in lines:
        used += len(line) + 1
        if used > most:
            break
        kept.append(line)
    return kept if len(kept) == len(lines) else [*kept, f"… {len(lines) - len(kept)} lines more, in the report"]


class Report:
    def __init__(self, path, about):
        self.path = path
        self.content = {"format": 1, **about, "finished": False, "seconds": 0, "steps": []}
        self.lines = []
        self.write()

    def write(self):
        """Replaces the file as a whole, so that one that is cut off is never seen."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1, default=str) + "\n")
        os.replace(part, self.path)

    def add(self, step, lines, seconds):
        self.content["steps"].append(step)
        self.content["seconds"] = round(seconds, 1)
        why = f": {step['reason']}" if step["reason"] else ""
        self.lines.append(f"{step['name']:<12} {step['status']:<8} {step['seconds']:6.1f} s{why}")
        self.lines += [f"    {line}" for line in lines]
        self.write()

    def finish(self, seconds):
        self.content.update(finished=True, seconds=round(seconds, 1))
        self.write()

    def text(self):
        counts = {}
        for step in self.content["steps"]:
            counts[step["status"]] = counts.get(step["status"], 0) + 1
        last = ", ".join(f"{count} {status}" for status, count in counts.items())
        last += f" in {self.content['seconds']:.0f} s; all figures: {self.path}"
        return "\n".join([*shortened(self.lines, MOST_CHARACTERS - len(last) - 200), last])
