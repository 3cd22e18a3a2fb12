#!/usr/bin/env python3
"""Writes unicode_tables.inc: what core/text knows of characters.

    python3 unicode_tables.py > unicode_tables.inc

The tables are what Python's `tokenizers` does with each code point, asked of tokenizers 0.23.3, because a tokenizer.json means
what that library makes of it: \\p{…} and \\s of its patterns are those of Unicode 16, its \\w that of Unicode 16, its numeric
characters those of Unicode 17, its NFC that of Unicode 9. Needs the packages tokenizers and unicodedata2; the latter gives the
decompositions one step at a time and the combining classes, each of which is checked against the library.
"""
import sys

import tokenizers
import unicodedata2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def matched(pattern):
    """The code points that a pattern of one character matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for first in range(0, len(CODE_POINTS), 50000):
        for piece, _ in split.pre_tokenize_str("".join(map(chr, CODE_POINTS[first : first + 50000]))):
            found.update(map(ord, piece))
    return found


def numeric():
    """Those that the pre-tokenizer Digits takes for numbers."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    found = set()
    for first in range(0, len(CODE_POINTS), 50000):
        text = "".join("a" + chr(c) for c in CODE_POINTS[first : first + 50000])
        found.update(ord(piece) for piece, _ in digits.pre_tokenize_str(text) if len(piece) == 1 and piece != "a")
    return found


def word():
    """Those beside which an added token with single_word is not one."""
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.add_tokens([AddedToken("\0", single_word=True)])
    return {c for c in CODE_POINTS if c != 0 and not tokenizer.encode(chr(c) + "\0").ids or chr(c) == "a"}


def write(name, numbers):
    print(f"inline constexpr std::uint32_t {name}[] = {{")
    line = "   "
    for number in numbers:
        text = f" {number:#x}," if number > 9 else f" {number},"
        if len(line) + len(text) > 120:
            print(line)
            line = "   "
        line += text
    print(line)
    print("};\n")


def runs(values):
    """first, value, first, value, …: every code point from `first` to the next one has the value."""
    numbers, last = [], 0
    for code_point in range(0x110000):
        value = values.get(code_point, 0)
        if value != last:
            numbers += [code_point, value]
            last = value
    return numbers


def classes():
    bits = [
        matched(r"\p{L}"),
        matched(r"\p{N}"),
        matched(r"\s"),
        matched(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"),
        matched(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"),
        numeric(),
        word(),
    ]
    values = {}
    for bit, members in enumerate(bits):
        for code_point in members:
            values[code_point] = values.get(code_point, 0) | 1 << bit
    return values


nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str


def combining_class(code_point):
    value = unicodedata2.combining(chr(code_point))
    lower, higher = chr(0x334), chr(0x345)  # of classes 1 and 240
    moves = value > 1 and nfd("a" + chr(code_point) + lower) == "a" + lower + chr(code_point)
    moves = moves or 0 < value < 240 and nfd("a" + higher + chr(code_point)) == "a" + chr(code_point) + higher
    return value if moves or value == 240 else 0


def decompositions():
    """Triples: a code point and the one or two that it decomposes to in one step; and those that are not composed again."""
    numbers, excluded = [], []
    for code_point in CODE_POINTS:
        whole = chr(code_point)
        if 0xAC00 <= code_point < 0xD7A4 or nfd(whole) == whole:
            continue
        parts = [int(part, 16) for part in unicodedata2.decomposition(whole).split()]
        assert nfd("".join(map(chr, parts))) == nfd(whole), hex(code_point)
        numbers += [code_point, parts[0], parts[1] if len(parts) > 1 else 0]
        if len(parts) > 1 and nfc("".join(map(chr, parts))) != whole:
            excluded.append(code_point)
    return numbers, excluded


assert tokenizers.__version__ == "0.23.3", "another version may know other characters"
print("// Made by unicode_tables.py from tokenizers 0.23.3. Not to be edited.\n")
print("// Runs: a first code point, and the classes of it and those after it, as the bits of CharacterClass.")
write("class_runs", runs(classes()))
print("// Runs of canonical combining classes.")
write("combining_runs", runs({c: combining_class(c) for c in CODE_POINTS if unicodedata2.combining(chr(c))}))
pairs, not_composed = decompositions()
print("// A code point and what it decomposes to in one step; the second is 0 if there is one.")
write("decompositions", pairs)
print("// Decompositions that are not composed again.")
write("not_composed", not_composed)
