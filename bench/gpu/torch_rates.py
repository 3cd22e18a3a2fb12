#!/usr/bin/env python3
"""Speed of PyTorch's bfloat16 products and copies.

Reads {"device": …, "products": {name: [m, n, k]}, "copy_bytes": …} and prints {"tflops": {name: …}, "copy_gb_per_s": …}.
Operands are random numbers, because a GPU is faster with zeros.
"""

import json
import statistics
import sys
import time

import torch


def median_seconds(device, work, repeat=10):
    for _ in range(3):
        work()
    times = []
    for _ in range(repeat):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1000)
        else:
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main():
    asked = json.load(sys.stdin)
    device = asked["device"]
    rates = {}
    for name, (m, n, k) in asked["products"].items():
        a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        b = torch.randn(k, n, device=device, dtype=torch.bfloat16)
        result = torch.empty(m, n, device=device, dtype=torch.bfloat16)
        seconds = median_seconds(device, lambda a=a, b=b, result=result: torch.mm(a, b, out=result))
        rates[name] = 2 * m * n * k / seconds / 1e12
    source = torch.ones(asked["copy_bytes"] // 4, device=device)
    target = torch.empty_like(source)
    seconds = median_seconds(device, lambda: target.copy_(source))
    print(json.dumps({"tflops": rates, "copy_gb_per_s": 2 * asked["copy_bytes"] / seconds / 1e9}))


main()
