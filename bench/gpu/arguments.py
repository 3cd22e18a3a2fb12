"""Types of arguments for argparse, which says what is wrong with a value and ends with exit code 2."""

import argparse
import math


def positive(text, number=float):
    try:
        value = number(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0")
    return value


def positive_integer(text):
    return positive(text, int)
