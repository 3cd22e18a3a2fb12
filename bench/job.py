"""Reads the parts of job files that benchmarks need, and writes the job file that every contestant then runs."""

import array
import configparser
import os
import random
import sys


class JobError(Exception):
    """A job that cannot be benchmarked; the message says why."""


def read_job(path, overrides=()):
    """{section: {key: text}}. Paths become absolute: the file's from its folder, an override's from the working one."""
    reader = configparser.ConfigParser(
        delimiters=("=",), comment_prefixes=(";", "#"), inline_comment_prefixes=(";", "#"), interpolation=None
    )
    try:
        with open(path, encoding="utf-8-sig") as file:
            reader.read_file(file)
    except (OSError, configparser.Error) as error:
        raise JobError(f"cannot read {path}: {error}") from error
    job = {section: dict(reader[section]) for section in reader.sections()}
    _make_absolute(job, os.path.dirname(os.path.abspath(path)))

    for override in overrides:
        name, equals, value = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot):
            raise JobError(f"--set takes section.key=value, found '{override}'")
        given = {section: {key: value.strip()}}
        _make_absolute(given, os.getcwd())
        job.setdefault(section, {}).update(given[section])
    return job


def _make_absolute(job, folder):
    for section, key, separator in (("data", "text", None), ("data", "tokens", None), ("plugins", "path", ":")):
        value = job.get(section, {}).get(key)
        if value:
            paths = value.strip('"').split(separator) if separator else [value.strip('"')]
            job[section][key] = (separator or "").join(os.path.join(folder, path) for path in paths)


def write_job(path, job):
    with open(path, "w", encoding="utf-8") as file:
        for section, settings in job.items():
            file.write(f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()) + "\n")


def random_tokens(path, job):
    """Writes a file of random tokens that is long enough for a short run. Returns its path."""
    vocabulary = int(job.get("model", {}).get("vocab", 256))
    count = 64 * int(job["data"].get("batch", 12)) * (int(job["model"]["context"]) + 1)
    source = random.Random(1337)
    values = array.array("H", (source.randrange(vocabulary) for _ in range(count)))
    if sys.byteorder == "big":
        values.byteswap()
    path.write_bytes(values.tobytes())
    return str(path)


def setting_of(job):
    """The typed values that a rival trains with; defaults are shardrun's."""
    model, data, train, run = (job.get(section, {}) for section in ("model", "data", "train", "job"))
    for section, key, default, known in (
        (model, "name", "", "gpt"),
        (train, "optimizer", "adamw", "adamw"),
        (train, "schedule", "cosine", "cosine"),
        (run, "ranks", "1", "1"),
    ):
        if section.get(key, default) != known:
            raise JobError(f"the rivals know {key} = {known} only; the job says '{section.get(key, default)}'")
    missing = [key for key in ("layers", "heads", "width", "context") if key not in model]
    if missing:
        raise JobError(f"[model] {missing[0]} is missing")
    return {
        **{key: int(model[key]) for key in ("layers", "heads", "width", "context")},
        "vocab": int(model["vocab"]) if "vocab" in model else None,
        "bias": _boolean(model.get("bias", "false")),
        "tied": _boolean(model.get("tied", "true")),
        "gelu": model.get("gelu", "tanh"),
        "dropout": float(model.get("dropout", 0)),
        "text": data.get("text"),
        "tokens": data.get("tokens"),
        "tokenizer": data.get("tokenizer", "char"),
        "split": float(data.get("split", 0.9)),
        "batch": int(data.get("batch", 12)),
        "microbatches": int(data.get("microbatches", 1)),
        "steps": int(train.get("steps", 0)),
        "learning_rate": float(train.get("learning_rate", 1e-3)),
        "min_learning_rate": float(train.get("min_learning_rate", 0)),
        "warmup": int(train.get("warmup", 0)),
        "weight_decay": float(train.get("weight_decay", 0)),
        "beta1": float(train.get("beta1", 0.9)),
        "beta2": float(train.get("beta2", 0.999)),
        "epsilon": float(train.get("epsilon", 1e-8)),
        "clip": float(train.get("clip", 0)),
        "precision": train.get("precision", "float32"),
        "seed": int(run.get("seed", 1337)),
    }


def _boolean(text):
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise JobError(f"expected a boolean, found '{text}'")
