"""Shows where the time of a step goes: the times of its ops from a trace, and PyTorch's times for the same products."""

import gzip
import json
import math
import pathlib
import re
import shutil
import time

from machine import Failed, run
from report import table
from training import WAYS, run_shardrun

HERE = pathlib.Path(__file__).resolve().parent
TRACED = ("job.trace=steps", "job.trace_first=4", "job.trace_steps=2", "train.steps=6")
MOST_ROWS = 14


def events_of(trace):
    return [each for each in json.loads(trace.read_text())["traceEvents"] if each.get("ph") == "X"]


def grouped(events, key, steps):
    """[(key, ms a step, calls a step, TFLOP/s, GB/s)], the longest first."""
    sums = {}
    for event in events:
        arguments = event["args"]
        name = key(event)
        if name is None:
            continue
        total = sums.setdefault(name, [0.0, 0, 0, 0])
        total[0] += event["dur"]
        total[1] += 1
        total[2] += arguments.get("flops", 0)
        total[3] += arguments.get("bytes", 0)
    rows = []
    for name, (microseconds, calls, flops, moved) in sorted(sums.items(), key=lambda each: -each[1][0]):
        seconds = max(microseconds, 1e-3) / 1e6
        rows.append(
            {
                "name": name,
                "ms": microseconds / 1000 / steps,
                "calls": calls / steps,
                "tflops": flops / seconds / 1e12,
                "gb_per_s": moved / seconds / 1e9,
            }
        )
    return rows


def by_op(event):
    return f"{event['args']['op']} {event['args'].get('phase', '')}".strip()


def by_product(event):
    """The products of all layers as one."""
    if event["args"]["op"] not in ("matmul", "matmul_gradient_weights", "einsum", "attention", "attention_gradient"):
        return None
    return re.sub(r"layer\.\d+/", "layer.*/", event["name"])


class OpTimes:
    """The step: a traced run of a model."""

    def __init__(self, name, contests):
        self.name, self.contests = name, contests

    def __call__(self, machine, options, seconds):
        machine.require_gpu()
        contest = self.contests[self.name]
        contest.require_batch()
        # Ops that are fused with a product take no time of their own.
        unfused = {} if machine.has_own_products() else WAYS["ops after products unfused"]
        run_shardrun(
            machine, contest, seconds, measured=seconds, settings=TRACED, least=2, reserve=3, variables=unfused
        )
        return by_op_and_product(machine, options, contest, "ops")


def by_op_and_product(machine, options, contest, name):
    """The figures of the last run, which was traced, and their lines. Keeps the trace beside the report."""
    trace = machine.results / "run" / "trace.json"
    if not trace.exists():
        raise Failed("the run left no trace.json")
    kept = options.out.resolve().with_name(f"gpu-trace-{name}.json.gz")
    with open(trace, "rb") as source, gzip.open(kept, "wb", compresslevel=4) as target:
        shutil.copyfileobj(source, target)
    events = events_of(trace)
    steps = [each for each in events if each.get("cat") == "step"]
    computed = [each for each in events if each.get("cat") == "compute" and "op" in each["args"]]
    if not steps or not computed:
        raise Failed("the trace has no steps with ops")
    step_ms = sum(each["dur"] for each in steps) / 1000 / len(steps)
    ops = grouped(computed, by_op, len(steps))
    products = grouped(computed, by_product, len(steps))
    in_ops = sum(row["ms"] for row in ops)
    figures = {"batch": contest.batch, "step_ms": step_ms, "ops_ms": in_ops, "ops": ops, "products": products}
    lines = [f"batch {contest.batch}: a step {step_ms:.2f} ms, in ops {in_ops:.2f} ms (timed by events)"]
    for title, rows in (("op", ops), ("product", products)):
        lines += table(
            [(title, "ms", "of step", "calls", "TFLOP/s", "GB/s")]
            + [
                (
                    row["name"],
                    f"{row['ms']:.2f}",
                    f"{row['ms'] / step_ms:.1%}",
                    f"{row['calls']:.0f}",
                    f"{row['tflops']:.1f}",
                    f"{row['gb_per_s']:.0f}",
                )
                for row in rows[:MOST_ROWS]
            ]
        )
    return figures, lines


class First:
    """The step before all others: a model trained by shardrun alone, with a loss that falls, and two traced steps. If it
    fails, it is run again with each library left out, and the rest of the steps go on without the culprit."""

    WITHOUT = {
        "own attention": {"SHARDRUN_CUDA_DNN": "own"},
        "own products": {"SHARDRUN_CUDA_PRODUCTS": "own"},
        "own attention and products": {"SHARDRUN_CUDA_DNN": "own", "SHARDRUN_CUDA_PRODUCTS": "own"},
        "one launch at a time": {"CUDA_LAUNCH_BLOCKING": "1"},
        "own, one launch at a time": {
            "SHARDRUN_CUDA_DNN": "own",
            "SHARDRUN_CUDA_PRODUCTS": "own",
            "CUDA_LAUNCH_BLOCKING": "1",
        },
    }

    def __init__(self, name, contests):
        self.name, self.contests = name, contests

    def train(self, machine, options, seconds, variables):
        contest = self.contests[self.name]
        steps = 8 if options.small else 25
        settings = ("job.trace=steps", f"job.trace_first={steps}", "job.trace_steps=2", f"train.steps={steps + 2}")
        result = run_shardrun(
            machine, contest, seconds, measured=seconds, settings=settings, least=5, reserve=3, variables=variables
        )
        losses = result["losses"]
        if not all(map(math.isfinite, losses)) or losses[-1] >= losses[0]:
            raise Failed(f"the loss does not fall: {', '.join(f'{loss:.4f}' for loss in losses)}", result)
        return result

    def __call__(self, machine, options, seconds):
        machine.require_gpu()
        self.contests[self.name].require_batch()
        limit = time.monotonic() + seconds
        try:
            result = self.train(machine, options, max(10, 0.6 * seconds), {})
        except Failed as failed:
            tried = {"as found": str(failed)}
            found = None
            for name, variables in self.WITHOUT.items():
                if limit - time.monotonic() < 3:
                    break
                try:
                    result = self.train(machine, options, max(5, (limit - time.monotonic()) / 2), variables)
                    tried[name] = f"passes, {result['step_ms']:.1f} ms a step"
                    found = name
                    break
                except Failed as again:
                    tried[name] = str(again)
            lines = [f"{name}: {what}" for name, what in tried.items()]
            if found and "CUDA_LAUNCH_BLOCKING" not in self.WITHOUT[found]:
                machine.environment.update(self.WITHOUT[found])
                lines.append(f"the other steps go on with {found}")
            raise Failed(str(failed), {"tried": tried, "lines": lines}) from failed
        contest = self.contests[self.name]
        rate = 1000 * contest.tokens_per_step / result["step_ms"]
        losses = result["losses"]
        lines = [
            f"{result['steps']} steps, {result['step_ms']:.1f} ms a step, {rate:,.0f} tokens/s, loss {losses[0]:.3f} to "
            f"{losses[-1]:.3f}, {result['seconds']:.0f} s in all; {result['gpu']}"
        ]
        figures, more = by_op_and_product(machine, options, contest, "first")
        return {"run": result, **figures}, lines + more


class Ceilings:
    """The step: what PyTorch reaches on this GPU with large products, with a model's products, and with copies."""

    def __init__(self, name, contests):
        self.name, self.contests = name, contests

    def __call__(self, machine, options, seconds):
        machine.require_torch(options.small)
        contest = self.contests[self.name]
        shapes = {"8192 x 8192 x 8192": (8192, 8192, 8192)}
        if options.small or contest.path is None:
            shapes = {"64 x 64 x 64": (64, 64, 64)}
        else:
            rows, width = contest.tokens_per_step, contest.model["width"]
            for title, columns, inner in (
                ("attention/qkv", 3 * width, width),
                ("attention/output", width, width),
                ("mlp/up", 4 * width, width),
                ("mlp/down", width, 4 * width),
                ("logits", contest.vocabulary, width),
            ):
                shapes[f"{title} {rows} x {columns} x {inner}"] = (rows, columns, inner)
        device = "cuda" if machine.torch["gpu"] else "cpu"
        asked = {"device": device, "products": shapes, "copy_bytes": (1 << 20) if options.small else (1 << 32)}
        ran = run([machine.python, HERE / "torch_rates.py"], seconds, text=json.dumps(asked))
        if ran.code != 0:
            raise Failed(ran.last_words())
        figures = json.loads(ran.out)
        rows = [("bfloat16, random numbers", "TFLOP/s")] + [
            (name, f"{rate:.1f}") for name, rate in figures["tflops"].items()
        ]
        return figures, [*table(rows), f"copy, bytes read and written: {figures['copy_gb_per_s']:.0f} GB/s"]
