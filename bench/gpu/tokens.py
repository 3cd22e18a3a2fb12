"""Tokens to train on. Some are far more frequent than others, so that the loss falls within a few steps."""

import array
import random
import sys


def write_tokens(path, vocabulary, count):
    """Writes uint16 tokens; the path as text."""
    source = random.Random(1337)
    values = array.array("H", (int(vocabulary * source.random() ** 4) for _ in range(count)))
    if sys.byteorder == "big":
        values.byteswap()
    path.write_bytes(values.tobytes())
    return str(path)
