"""The step that compares split jobs with the float64 reference."""

import concurrent.futures
import json
import time

from job import write_job
from machine import Failed, Skipped, run
from tokens import write_tokens

STRATEGIES = {
    "single": ["job.ranks=1"],
    "dp": ["job.ranks=2"],
    "zero1": ["job.ranks=2"],
    "zero2": ["job.ranks=2"],
    "zero3": ["job.ranks=2"],
    "hsdp": ["job.ranks=4", "mesh.replica=2", "mesh.shard=2"],
    "tp": ["job.ranks=2"],
    "pp": ["job.ranks=2"],
    "3d": ["job.ranks=8", "mesh.pipe=2", "mesh.data=2", "mesh.model=2"],
}
PRECISIONS = ("float32", "mixed")
IN_PROCESS_OF_FEW = (("dp", "float32"), ("tp", "float32"), ("3d", "mixed"))
FEW = ("single", "dp", "zero3", "tp", "pp", "3d")
IN_PROCESS_BY_DNN = ("single", "tp")
IN_PROCESSES = ("dp", "zero3", "tp", "pp")
# The first NCCL that lets several ranks use one GPU, if a variable allows it.
SHARING_NCCL = (2, 30)
SHARING = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def write_verified_job(machine, small):
    tokens = write_tokens(machine.scratch / "verified.bin", vocabulary=67 if small else 1003, count=20_000)
    size = (
        {"layers": 2, "heads": 2, "width": 16, "context": 8}
        if small
        else {"layers": 4, "heads": 4, "width": 128, "context": 64}
    )
    job = {
        # A vocabulary that no tile size divides.
        "model": {"name": "gpt", **size, "vocab": 67 if small else 1003, "bias": "true"},
        "data": {"tokens": tokens, "batch": 8, "microbatches": 2, "split": 1},
        "train": {"steps": 2, "clip": 1, "weight_decay": 0.1},
    }
    path = machine.scratch / "verified.ini"
    write_job(path, job)
    return path


def can_nccl(machine):
    """Variables with which NCCL lets the ranks of a test use the GPUs. Throws Skipped where it does not."""
    if machine.nccl is None:
        raise Skipped("there is no libnccl.so.2")
    if len(machine.units) > 1:
        return {}
    if machine.nccl < SHARING_NCCL:
        raise Skipped(
            f"one GPU, and NCCL {'.'.join(map(str, machine.nccl))} lets one rank use it; 2.30 or newer lets several"
        )
    return SHARING


def ranks_of(strategy):
    return int(STRATEGIES[strategy][0].partition("=")[2])


def device_of(ranks, units):
    return "cuda:" + ",".join(str(rank % units) for rank in range(ranks))


class Case:
    """One comparison of a split job with the float64 reference."""

    def __init__(self, how, strategy, precision, words=(), variables=None, settings=(), units=1):
        self.how, self.strategy, self.precision = how, strategy, precision
        self.settings = [
            f"job.strategy={strategy}",
            *STRATEGIES[strategy],
            f"train.precision={precision}",
            "job.threads=1",
            f"job.device={device_of(ranks_of(strategy), units)}",
            *settings,
        ]
        self.words, self.variables = list(words), variables or {}

    def run(self, machine, job, seconds):
        command = [machine.shardrun, "verify", job, "--json", *self.words]
        for setting in self.settings:
            command += ["--set", setting]
        ran = run(command, seconds, {**machine.without_dnn, **self.variables}, folder=machine.scratch)
        result = {
            "how": self.how,
            "strategy": self.strategy,
            "precision": self.precision,
            "seconds": round(ran.seconds, 1),
        }
        try:
            said = json.loads(ran.out)
            worst = next(iter(said["worst"]), None)
            return {
                **result,
                "status": "passed" if said["passed"] else "failed",
                "compared": said["compared"],
                "failed": said["failed"],
                "worst": worst,
            }
        except ValueError:
            pass
        status = "no time" if ran.code is None else "failed"
        return {**result, "status": status, "reason": ran.last_words()}


def verify_few(machine, options, seconds):
    """The strategies with the most different traffic, in mixed, and one with ranks as processes."""
    machine.require_gpu()
    cases = [Case("in one process", strategy, "mixed", ["--in-process"]) for strategy in FEW]
    cases += [Case("shm", "dp", "float32", settings=["job.transport=shm"])]
    return compare(machine, options, seconds, cases[:1] + cases[-1:] if options.small else cases, [])


def verify(machine, options, seconds):
    """Every strategy against the float64 reference: ranks in one process, and ranks as processes."""
    machine.require_gpu()
    pairs = [(strategy, precision) for precision in PRECISIONS for strategy in STRATEGIES]
    cases = [
        Case("in one process", strategy, precision, ["--in-process"])
        for strategy, precision in (IN_PROCESS_OF_FEW if options.small else pairs)
    ]
    if machine.has_dnn():
        cases += [
            Case("in one process, by cuDNN", strategy, "mixed", ["--in-process"], {"SHARDRUN_CUDA_DNN": "cudnn"})
            for strategy in IN_PROCESS_BY_DNN
        ]
    staged = IN_PROCESSES[:1] if options.small else IN_PROCESSES
    cases += [Case("shm", strategy, "float32", settings=["job.transport=shm"]) for strategy in staged]
    lines = []
    try:
        variables = can_nccl(machine)
        units = len(machine.units)
        cases += [
            Case("nccl", strategy, "float32", settings=["job.transport=nccl"], variables=variables, units=units)
            for strategy in (*staged, "hsdp")
            if units == 1 or ranks_of(strategy) <= units
        ]
    except Skipped as skipped:
        lines.append(f"ranks over nccl skipped: {skipped}")
    return compare(machine, options, seconds, cases, lines)


def compare(machine, options, seconds, cases, lines):
    limit = time.monotonic() + seconds
    job = write_verified_job(machine, options.small)

    def one(case):
        left = limit - time.monotonic()
        if left < 1:
            return {"how": case.how, "strategy": case.strategy, "precision": case.precision, "status": "no time"}
        return case.run(machine, job, left)

    with concurrent.futures.ThreadPoolExecutor(1 if options.small else 8) as pool:
        results = list(pool.map(one, cases))
    return judged(results, lines)


def judged(results, lines):
    def of(status):
        return [each for each in results if each["status"] == status]

    passed = {}
    for each in of("passed"):
        passed.setdefault((each["how"], each["precision"]), []).append(each["strategy"])
    lines += [f"{how}, {precision}: passed: {', '.join(which)}" for (how, precision), which in passed.items()]
    others = {}
    for each in results:
        if each["status"] != "passed":
            why = (
                each.get("reason") or f"{each.get('failed')} of {each.get('compared')} comparisons: {each.get('worst')}"
            )
            others.setdefault((each["how"], each["status"], why), []).append(f"{each['strategy']} {each['precision']}")
    lines += [f"{how}: {status}: {', '.join(which)}: {why}" for (how, status, why), which in others.items()]
    figures = {"cases": results, "lines": lines}
    if of("failed") or of("no time"):
        raise Failed(
            f"{len(of('failed'))} of {len(results)} comparisons failed, {len(of('no time'))} had no time", figures
        )
    return figures, lines
