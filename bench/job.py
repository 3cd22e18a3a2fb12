"""Reads a job file as far as the rival implementations need it: the model's sizes, the data, the optimizer."""

import configparser
import os


class JobError(Exception):
    """A job that cannot be benchmarked; the message says why."""


def read_job(path, overrides=()):
    """{section: {key: text}}. Paths become absolute: the file's start at its folder, an override's at the working one."""
    reader = configparser.ConfigParser(
        delimiters=("=",), comment_prefixes=(";", "#"), inline_comment_prefixes=(" ;", "\t;"), interpolation=None
    )
    try:
        with open(path, encoding="utf-8-sig") as file:
            reader.read_file(file)
    except (OSError, configparser.Error) as error:
        raise JobError(f"cannot read {path}: {error}") from error
    job = {section: dict(reader[section]) for section in reader.sections()}
    _make_absolute(job.get("data", {}), os.path.dirname(os.path.abspath(path)))

    for override in overrides:
        name, equals, value = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot):
            raise JobError(f"--set takes section.key=value, found '{override}'")
        given = {key: value.strip()}
        if section == "data":
            _make_absolute(given, os.getcwd())
        job.setdefault(section, {}).update(given)
    return job


def _make_absolute(data, folder):
    for key in ("text", "tokens"):
        if data.get(key):
            data[key] = os.path.join(folder, os.path.expanduser(data[key]))


def setting_of(job):
    """The typed values a rival trains with. What the job leaves out of [model] must be given: a guess that differs
    from shardrun's default would compare two models."""
    model, data, train = (job.get(section, {}) for section in ("model", "data", "train"))
    if model.get("name") != "gpt":
        raise JobError(f"the rivals know the model 'gpt' only; the job's [model] name is '{model.get('name')}'")
    if train.get("optimizer", "adamw") != "adamw":
        raise JobError(f"the rivals train with adamw only; the job's [train] optimizer is '{train['optimizer']}'")
    if int(job.get("job", {}).get("ranks", 1)) != 1:
        raise JobError("this compares one process with one process; set job.ranks=1 and job.strategy=single")
    missing = [key for key in ("layers", "heads", "width", "context", "bias", "tied", "gelu") if key not in model]
    if missing:
        raise JobError(f"[model] must say {', '.join(missing)} for a comparison; add --set model.{missing[0]}=…")
    return {
        **{key: int(model[key]) for key in ("layers", "heads", "width", "context")},
        "vocab": int(model["vocab"]) if "vocab" in model else None,
        "bias": _boolean(model["bias"]),
        "tied": _boolean(model["tied"]),
        "gelu": model["gelu"],
        "dropout": float(model.get("dropout", 0)),
        "text": data.get("text"),
        "tokens": data.get("tokens"),
        "tokenizer": data.get("tokenizer", "char"),
        "batch": int(data.get("batch", 1)),
        "microbatches": int(data.get("microbatches", 1)),
        "learning_rate": float(train.get("learning_rate", 1e-3)),
        "min_learning_rate": float(train.get("min_learning_rate", 0)),
        "warmup": int(train.get("warmup", 0)),
        "weight_decay": float(train.get("weight_decay", 0)),
        "beta1": float(train.get("beta1", 0.9)),
        "beta2": float(train.get("beta2", 0.999)),
        "epsilon": float(train.get("epsilon", 1e-8)),
        "clip": float(train.get("clip", 0)),
        "seed": int(job.get("job", {}).get("seed", 1337)),
    }


def _boolean(text):
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise JobError(f"expected a boolean, found '{text}'")
