#!/usr/bin/env python3
"""One rank of a measurement of all_reduce and all_gather through torch.distributed: NCCL on GPUs, Gloo on CPUs.

    torch_collectives.py RANK RANKS FILE DEVICE BYTES…      FILE is where the ranks meet; DEVICE is cuda:0 or cpu

Rank 0 prints a line of JSON for each op and size. As in nccl-tests, a size is that of the whole buffer (the one that
all_gather receives), a time is that of the slowest rank, and busbw is algbw times 2(n-1)/n for all_reduce and (n-1)/n for all_gather.
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

WARM, TIMED = 5, 20


def bus_factor(op, ranks):
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


def measure(work, device):
    """Seconds of each call."""
    times = []
    for number in range(WARM + TIMED):
        if device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            taken = begin.elapsed_time(end) / 1000
        else:
            start = time.perf_counter()
            work()
            taken = time.perf_counter() - start
        if number >= WARM:
            times.append(taken)
    return times


def wrong_elements(op, ranks, rank, count, device):
    """Of one call with known numbers."""
    part = torch.full((count // ranks if op == "all_gather" else count,), float(rank + 1), device=device)
    if op == "all_reduce":
        dist.all_reduce(part)
        return int((part != ranks * (ranks + 1) / 2).sum())
    whole = torch.zeros(part.numel() * ranks, device=device)
    dist.all_gather_into_tensor(whole, part)
    expected = torch.arange(1, ranks + 1, device=device, dtype=torch.float32).repeat_interleave(part.numel())
    return int((whole != expected).sum())


def main():
    rank, ranks, meeting, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], torch.device(sys.argv[4])
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "nccl"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    for size in map(int, sys.argv[5:]):
        count = size // 4 // ranks * ranks
        for op in ("all_reduce", "all_gather"):
            wrong = wrong_elements(op, ranks, rank, count, device)
            data = torch.rand(count, device=device)
            part = data[: count // ranks].clone()
            if op == "all_reduce":
                times = measure(lambda data=data: dist.all_reduce(data), device)
            else:
                times = measure(lambda data=data, part=part: dist.all_gather_into_tensor(data, part), device)
            slowest = torch.tensor([statistics.median(times), float(wrong)], device=device, dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            seconds, wrong = slowest.tolist()
            algorithm = 4 * count / seconds / 1e9
            if rank == 0:
                print(
                    json.dumps(
                        {
                            "op": op,
                            "bytes": 4 * count,
                            "time_us": 1e6 * seconds,
                            "algbw": algorithm,
                            "busbw": algorithm * bus_factor(op, ranks),
                            "wrong": int(wrong),
                        }
                    ),
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
