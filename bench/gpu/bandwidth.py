"""The bandwidth of NCCL's all_reduce and all_gather, by the formulas of nccl-tests."""

import concurrent.futures
import json
import os
import pathlib

from machine import Failed, run
from report import table
from split_jobs import can_nccl

HERE = pathlib.Path(__file__).resolve().parent
SIZES = (1 << 20, 16 << 20, 256 << 20)
SMALL_SIZES = (1 << 10, 1 << 14)


def bandwidth(machine, options, seconds):
    """Ranks of torch.distributed: one on each GPU, or two on one GPU where NCCL allows it."""
    machine.require_torch(options.small)
    on_cpu = not machine.torch["gpu"]  # a small run without a GPU: the same program over Gloo
    variables = {} if on_cpu else can_nccl(machine)
    gpus = machine.torch["gpus"]
    ranks = 2 if on_cpu else max(2, gpus)
    meeting = machine.scratch / "meeting"
    environment = {**os.environ, **variables}

    def rank(number):
        device = "cpu" if on_cpu else f"cuda:{number % gpus}"
        sizes = SMALL_SIZES if options.small else SIZES
        command = [machine.python, HERE / "torch_collectives.py", number, ranks, meeting, device, *sizes]
        return run(command, seconds, environment)

    with concurrent.futures.ThreadPoolExecutor(ranks) as pool:
        ended = list(pool.map(rank, range(ranks)))
    for number, ran in enumerate(ended):
        if ran.code != 0:
            raise Failed(f"rank {number} of {ranks}: {'no time' if ran.code is None else ran.last_words()}")
    rows = [json.loads(line) for line in ended[0].out.splitlines() if line.startswith("{")]
    figures = {"backend": "gloo" if on_cpu else "nccl", "ranks": ranks, "gpus": gpus, "rows": rows}
    shown = [(f"{figures['backend']}, {ranks} ranks, {gpus} GPUs", "bytes", "us", "algbw GB/s", "busbw GB/s", "wrong")]
    shown += [
        (
            row["op"],
            f"{row['bytes']:,}",
            f"{row['time_us']:.1f}",
            f"{row['algbw']:.2f}",
            f"{row['busbw']:.2f}",
            row["wrong"],
        )
        for row in rows
    ]
    lines = table(shown)
    if any(row["wrong"] for row in rows):
        raise Failed("wrong elements", {**figures, "lines": lines})
    return figures, lines
