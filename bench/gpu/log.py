"""The log: the command line and the output of each process, to find causes of failures when the machine is no longer available."""

import os
import threading

MOST_BYTES = 12 << 20
KEPT_OF_A_STREAM = 20_000

_file, _lock, _left = None, threading.Lock(), MOST_BYTES


def log_to(path):
    global _file
    _file = open(path, "w", encoding="utf-8", errors="replace")


def _shortened(text):
    if len(text) <= 2 * KEPT_OF_A_STREAM:
        return text
    left_out = len(text) - 2 * KEPT_OF_A_STREAM
    return f"{text[:KEPT_OF_A_STREAM]}\n[… {left_out} characters left out …]\n{text[-KEPT_OF_A_STREAM:]}"


def record(title, environment=None, **texts):
    """Writes an entry: its title, the variables that differ from this script's own, and named texts."""
    global _left
    parts = [f"==== {title}\n"]
    parts += [f"{name}={value}\n" for name, value in (environment or {}).items() if os.environ.get(name) != value]
    parts += [f"---- {name}\n{_shortened(text).rstrip()}\n" for name, text in texts.items() if text and text.strip()]
    entry = "".join(parts) + "\n"
    with _lock:
        if _file is not None and _left > 0:
            _left -= len(entry)
            _file.write(entry if _left > 0 else f"==== the log is full: {MOST_BYTES} bytes\n")
            _file.flush()


def record_process(command, environment, code, seconds, **texts):
    how = "killed at the end of its time" if code is None else f"exit code {code}"
    record(f"{how} after {seconds:.1f} s: {' '.join(map(str, command))}", environment, **texts)


def record_files(folder):
    """The text files that a failed job left, such as the logs of its ranks."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".log", ".txt", ".jsonl", ".ini", ".json"):
            record(f"file {path}", text=path.read_text(errors="replace"))
