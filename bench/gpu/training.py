"""The race: GPT-2 of several sizes, trained by shardrun and by PyTorch in turns."""

import json
import math
import shutil
import signal
import statistics
import subprocess
import time

from contest import STEPS, STEPS_OF_SMALL
from machine import Failed, Memory, Skipped, end, run
from report import table

# bfloat16 with dense operands, TFLOP/s, from NVIDIA's data sheets (SXM).
PEAKS = {"H100 80GB HBM3": 989, "H200": 989, "A100-SXM": 312}
OTHER_CARDS = ("NVL", "PCIe", "GH200")  # slower ones, or ones of another power, with such a name in theirs

# Steps that are not measured.
WARM = 5
LEAST_MEASURED = 3
SECONDS_OF_A_RUN = 8
ROUNDS = 3
LARGEST_DIFFERENCE_OF_LOSSES = 0.05


class OutOfMemory(Exception):
    """The rival's; the message says with which batch."""


# --- the contestants -------------------------------------------------------------------------------------------------


def metrics_of(folder):
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def run_shardrun(
    machine, contest, seconds, measured, settings=(), least=WARM + LEAST_MEASURED, reserve=8, variables=None
):
    """One run of the job, stopped when its steps have taken `measured` seconds; its steps and its memory. Fails below
    `least` steps. `reserve`: seconds that it may take to end, its weights apart."""
    folder = machine.results / "run"
    shutil.rmtree(folder, ignore_errors=True)
    command = [machine.shardrun, contest.path, "--set", f"job.output={folder}"]
    for setting in settings:
        command += ["--set", setting]
    begin, asked, log = time.monotonic(), None, machine.scratch / "run.log"
    to_end = reserve + contest.plan["disk"]["result_bytes"] / 1e9  # it writes its weights first
    with open(log, "w", encoding="utf-8") as file, Memory() as memory:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**machine.environment, **(variables or {})},
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                now = time.monotonic()
                lines = metrics_of(folder)
                if asked is None and (
                    (len(lines) > WARM + 1 and sum(line["step_s"] for line in lines[WARM:]) >= measured)
                    or now - begin > seconds - to_end
                ):
                    process.send_signal(signal.SIGTERM)  # it ends after the step, with its summary
                    asked = now
                if now - begin > seconds:
                    break
                time.sleep(0.05)
        finally:
            end(process)
    lines = metrics_of(folder)
    said = log.read_text(errors="replace").strip().splitlines()
    # Killed while it wrote its weights: its steps count, and there is no summary.
    ended = (0, 128 + signal.SIGTERM, -signal.SIGKILL) if asked else (0,)
    if process.returncode not in ended or len(lines) < 2:
        raise Failed(
            f"shardrun, batch {contest.batch}: ended with {process.returncode} after {len(lines)} steps: "
            + " | ".join(said[-3:])[-500:]
        )
    summary = folder / "summary.json"
    memory_of_rank = json.loads(summary.read_text())["ranks"][0] if summary.exists() else {}
    if len(lines) < least:
        raise Failed(f"shardrun, batch {contest.batch}: {len(lines)} steps in {seconds:.0f} s, expected {least} or more")
    times = [line["step_s"] for line in lines]
    return {
        "losses": [line["loss"] for line in lines],
        "step_ms": 1000 * statistics.median(times[min(WARM, len(times) // 3) :]),
        "steps": len(lines),
        "planned_bytes": memory_of_rank.get("planned_bytes"),
        "peak_bytes": memory_of_rank.get("peak_bytes"),
        "gpu_mib": memory.most,
        "seconds": time.monotonic() - begin,
    }


def run_torch(rivals, contest, seconds, measured):
    begin = time.monotonic()
    steps = STEPS_OF_SMALL if rivals.options.small else STEPS
    with Memory() as memory:
        ran = run(
            rivals.command(contest, "--warm", min(WARM, steps // 3), "--seconds", measured), seconds, rivals.environment
        )
    if ran.code != 0 and "out of memory" in (ran.out + ran.err).lower():
        raise OutOfMemory(f"PyTorch, batch {contest.batch}: {ran.last_words(200)}")
    if ran.code != 0:
        why = f"not done within {seconds:.0f} s" if ran.code is None else ran.last_words()
        raise Failed(f"PyTorch, batch {contest.batch}: {why}")
    said = json.loads(ran.out)
    if said["parameters"] != contest.plan["parameters"]:
        raise Failed(
            f"PyTorch trains {said['parameters']} parameters, shardrun {contest.plan['parameters']}: these are not the "
            "same model"
        )
    return {
        "losses": said["losses"],
        "step_ms": said["step_ms_median"],
        "steps": len(said["losses"]),
        "peak_bytes": said["peak_bytes"],
        "gpu_mib": memory.most,
        "first_step_s": said["first_step_s"],
        "build": said["build"],
        "seconds": time.monotonic() - begin,
    }


# --- the race --------------------------------------------------------------------------------------------------------


def race(machine, rivals, contest, seconds):
    """[{"shardrun": …, "PyTorch": …}] of each round, and why the rival is missing, or None."""
    limit = time.monotonic() + seconds
    why = rivals.why_not(contest.name)
    rounds, longest = [], 0
    measured = 0.5 if rivals.options.small else SECONDS_OF_A_RUN
    for number in range(1 if rivals.options.small else ROUNDS):
        begin = time.monotonic()
        if rounds and begin + 1.2 * longest > limit:
            break
        turns = ["shardrun", "PyTorch"] if number % 2 == 0 else ["PyTorch", "shardrun"]
        result = {}
        for name in turns:
            left = limit - time.monotonic()
            if name == "shardrun":
                # The rival needs its part of the first round.
                share = 1 if why or rounds or "PyTorch" in result else 0.5
                try:
                    result[name] = run_shardrun(machine, contest, max(12, share * left), measured)
                except Failed as failed:
                    if not rounds:
                        raise
                    return rounds, f"round {number + 1}: {failed}"
            elif not why:
                try:
                    result[name] = run_torch(rivals, contest, max(5, left), measured)
                except (Failed, OutOfMemory) as failed:
                    why = str(failed)
        rounds.append(result)
        longest = max(longest, time.monotonic() - begin)
    return rounds, why


def losses_differ(rounds):
    """(step, shardrun's loss, PyTorch's, what is implausible or None), at the last step that both have."""
    last = rounds[0]
    ours, theirs = last["shardrun"]["losses"], last["PyTorch"]["losses"]
    at = min(len(ours), len(theirs)) - 1
    wrong = None
    if not (math.isfinite(ours[at]) and math.isfinite(theirs[at])):
        wrong = "a loss is not finite"
    elif abs(ours[at] - theirs[at]) > LARGEST_DIFFERENCE_OF_LOSSES * theirs[at]:
        wrong = f"the losses differ by more than {LARGEST_DIFFERENCE_OF_LOSSES:.0%}"
    return at + 1, ours[at], theirs[at], wrong


def peak_of(gpu):
    """Of a card whose data sheet is known, or None."""
    if any(word in gpu for word in OTHER_CARDS):
        return None
    return next((peak for name, peak in PEAKS.items() if name in gpu), None)


def figures_of(machine, options, contest, rounds):
    flops = contest.model_flops_per_token()
    peak = options.peak_tflops or peak_of(machine.gpu or "")
    rows = {}
    for name in ("shardrun", "PyTorch"):
        runs = [each[name] for each in rounds if name in each]
        if not runs:
            continue
        ms = statistics.median(each["step_ms"] for each in runs)
        rate = 1000 * contest.tokens_per_step / ms
        rows[name] = {
            "step_ms": ms,
            "step_ms_rounds": [each["step_ms"] for each in runs],
            "tokens_per_s": rate,
            "model_tflops": rate * flops / 1e12,
            "share_of_peak": rate * flops / 1e12 / peak if peak else None,
            "peak_bytes": max((each["peak_bytes"] or 0 for each in runs)) or None,
            "gpu_mib": max((each["gpu_mib"] or 0 for each in runs)) or None,
            "runs": runs,
        }
    both = [each for each in rounds if len(each) == 2]
    ratio = (
        statistics.median(each["PyTorch"]["step_ms"] / each["shardrun"]["step_ms"] for each in both) if both else None
    )
    return {
        "batch": contest.batch,
        "context": contest.model["context"],
        "parameters": contest.plan["parameters"],
        "planned_bytes": contest.plan["ranks"][0]["bytes"]["peak"],
        "plan_flops_per_step": contest.plan["flops_per_step"],
        "model_flops_per_step": flops * contest.tokens_per_step,
        "flops_formula": "6N + 6*layers*context*width a token",
        "peak_tflops": peak,
        "contestants": rows,
        "times_pytorch": ratio,
    }


def lines_of(contest, figures):
    rows = [
        (
            f"batch {contest.batch} x {contest.model['context']}",
            "steps",
            "step ms",
            "tokens/s",
            "TFLOP/s",
            "of peak",
            "GiB",
            "GPU MiB",
        )
    ]
    for name, row in figures["contestants"].items():
        eager = name == "PyTorch" and not figures["rival_compiled"]
        rows.append(
            (
                f"{name}{' eager' * eager}",
                "+".join(str(each["steps"]) for each in row["runs"]),
                f"{row['step_ms']:.1f}",
                f"{row['tokens_per_s']:,.0f}",
                f"{row['model_tflops']:.1f}",
                f"{row['share_of_peak']:.1%}" if row["share_of_peak"] is not None else "?",
                f"{row['peak_bytes'] / 2**30:.2f}" if row["peak_bytes"] else "?",
                row["gpu_mib"] or "?",
            )
        )
    return table(rows)


class Training:
    """The step for one model."""

    def __init__(self, name, rivals, contests):
        self.name, self.rivals, self.contests = name, rivals, contests

    def __call__(self, machine, options, seconds):
        machine.require_gpu()
        contest = self.contests[self.name]
        contest.require_batch()
        rivals = self.rivals()
        rounds, why = race(machine, rivals, contest, seconds)
        figures = figures_of(machine, options, contest, rounds)
        figures.update(rival_lacks=why, rival_compiled=contest.name not in rivals.eager and rivals.device == "cuda")
        lines = lines_of(contest, figures)
        if figures["peak_tflops"] is None:
            lines.append(f"no peak is known of '{machine.gpu}': --peak-tflops names it")
        if figures["times_pytorch"]:
            step, ours, theirs, wrong = losses_differ([each for each in rounds if len(each) == 2])
            figures["loss"] = {"step": step, "shardrun": ours, "PyTorch": theirs}
            lines.append(
                f"shardrun's speed over PyTorch's {figures['times_pytorch']:.2f} ({len(rounds)} rounds); loss of step "
                f"{step}: {ours:.3f}, {theirs:.3f}"
            )
            if wrong:
                raise Failed(wrong, {**figures, "lines": lines})
        if why:
            lines.append(f"what is missing: {why}")
        return figures, lines


# --- shardrun's own choices ------------------------------------------------------------------------------------------

WAYS = {
    "own attention": {"SHARDRUN_CUDA_DNN": "own"},
    "ops after products unfused": {"SHARDRUN_CUDA_PRODUCTS": "unfused"},
    "own products": {"SHARDRUN_CUDA_PRODUCTS": "own"},
}


class Ways:
    """The step that trains a model with each choice of libraries that a variable makes, beside the default."""

    def __init__(self, name, contests):
        self.name, self.contests = name, contests

    def __call__(self, machine, options, seconds):
        machine.require_gpu()
        contest = self.contests[self.name]
        contest.require_batch()
        ways = {"as found": {}}
        if machine.has_dnn():
            ways["own attention"] = WAYS["own attention"]
        if not machine.has_own_products():
            ways.update((name, WAYS[name]) for name in list(WAYS)[1:])
        if len(ways) == 1:
            raise Skipped("neither cuBLASLt nor cuDNN is used")
        limit, figures, lacks = time.monotonic() + seconds, {}, []
        for number, (name, variables) in enumerate(ways.items()):
            share = (limit - time.monotonic()) / (len(ways) - number)
            try:
                figures[name] = run_shardrun(
                    machine,
                    contest,
                    max(6, share),
                    0.5 if options.small else 2,
                    least=LEAST_MEASURED,
                    reserve=2,
                    variables=variables,
                )
            except Failed as failed:
                lacks.append(f"{name}: {failed}")
        found = figures["as found"]["step_ms"] if "as found" in figures else None
        rows = [("", "step ms", "of as found")] + [
            (name, f"{of['step_ms']:.1f}", f"{of['step_ms'] / found:.2f}" if found else "?")
            for name, of in figures.items()
        ]
        if lacks:
            raise Failed("; ".join(lacks), {**figures, "lines": table(rows)})
        return figures, table(rows)
