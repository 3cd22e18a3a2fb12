"""The race: GPT-2 of several sizes, trained by shardrun and by PyTorch in turns."""

import json
import math
import shutil
import signal
import statistics
import subprocess
import time

from contest import STEPS, STEPS_OF_SMALL
from log import record_files, record_process
from machine import Failed, Skipped, Watch, end
from report import table
from rivals import DEFAULT, OutOfMemory

# bfloat16 with dense operands, TFLOP/s, from NVIDIA's data sheets (SXM).
PEAKS = {"H100 80GB HBM3": 989, "H200": 989, "A100-SXM": 312}
OTHER_CARDS = ("NVL", "PCIe", "GH200")  # slower cards, or cards of another power, which have such a name in theirs

# Steps that are not measured.
WARM = 5
LEAST_MEASURED = 3
SECONDS_OF_A_RUN = 8
ROUNDS = 3
LARGEST_DIFFERENCE_OF_LOSSES = 0.05


# --- the contestants -------------------------------------------------------------------------------------------------


def metrics_of(folder):
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def run_shardrun(
    machine, contest, seconds, measured, settings=(), least=WARM + LEAST_MEASURED, reserve=8, variables=None
):
    """One run of the job; its steps and its memory. It is killed when its steps have taken `measured` seconds, before it
    writes weights, and asked to stop in time before `seconds` have passed. Fails below `least` steps. `reserve`: seconds
    that it may take to end when it is asked, its weights apart."""
    folder = machine.results / "run"
    shutil.rmtree(folder, ignore_errors=True)
    command = [machine.shardrun, contest.path, "--set", f"job.output={folder}"]
    for setting in settings:
        command += ["--set", setting]
    begin, asked, is_measured, log = time.monotonic(), None, False, machine.scratch / "run.log"
    to_end = reserve + contest.plan["disk"]["result_bytes"] / 1e9  # it writes its weights first
    environment = {**machine.environment, **(variables or {})}
    with open(log, "w", encoding="utf-8") as file, Watch() as watch:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                now = time.monotonic()
                lines = metrics_of(folder)
                is_measured = len(lines) >= max(least, WARM + 2) and sum(line["step_s"] for line in lines[WARM:]) >= measured
                if asked is None and now - begin > seconds - to_end:
                    process.send_signal(signal.SIGTERM)  # it ends after the step, with its summary
                    asked = now
                if is_measured or now - begin > seconds:
                    break
                time.sleep(0.05)
        finally:
            end(process)
    lines = metrics_of(folder)
    said = log.read_text(errors="replace")
    record_process(command, environment, process.returncode, time.monotonic() - begin, said=said)
    # It was killed: its steps count, but there is no summary.
    ended = (0, 128 + signal.SIGTERM, -signal.SIGKILL) if asked or is_measured else (0,)
    if process.returncode not in ended or len(lines) < 2:
        record_files(folder)
        raise Failed(
            f"shardrun, batch {contest.batch}: ended with {process.returncode} after {len(lines)} steps: "
            + " | ".join(said.strip().splitlines()[-3:])[-500:]
        )
    if len(lines) < least:
        raise Failed(f"shardrun, batch {contest.batch}: {len(lines)} steps in {seconds:.0f} s, expected {least} or more")
    times = [line["step_s"] for line in lines]
    return {
        "losses": [line["loss"] for line in lines],
        "step_ms": 1000 * statistics.median(times[min(WARM, len(times) // 3) :]),
        "steps": len(lines),
        "peak_bytes": contest.plan["ranks"][0]["bytes"]["peak"],
        "gpu_mib": watch.most_mib,
        "gpu": watch.said(),
        "seconds": time.monotonic() - begin,
    }


def run_torch(rival, contest, seconds, measured, steps):
    begin = time.monotonic()
    with Watch() as watch:
        said = rival.ask(steps, min(WARM, steps // 3), measured, seconds)
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
        "gpu_mib": watch.most_mib,
        "gpu": watch.said(),
        "first_step_s": said["first_step_s"],
        "build": said["build"],
        "seconds": time.monotonic() - begin,
    }


# --- the race --------------------------------------------------------------------------------------------------------


def race(machine, rivals, contest, seconds):
    """[{"shardrun": …, DEFAULT: …, …}] of each round, and why a rival is missing, or None."""
    limit = time.monotonic() + seconds
    rivals_of_model, why = rivals.of(contest.name)
    rounds, longest = [], 0
    measured = 0.5 if rivals.options.small else SECONDS_OF_A_RUN
    steps = STEPS_OF_SMALL if rivals.options.small else STEPS
    for number in range(1 if rivals.options.small else ROUNDS):
        begin = time.monotonic()
        if rounds and begin + 1.2 * longest > limit:
            break
        turns = ["shardrun", *rivals_of_model]
        result = {}
        for name in turns if number % 2 == 0 else reversed(turns):
            left = limit - time.monotonic()
            if name == "shardrun":
                # The first round leaves the rivals their part of the time.
                share = 1 if why or rounds else 0.5
                try:
                    result[name] = run_shardrun(machine, contest, max(12, share * left), measured)
                except Failed as failed:
                    if not rounds:
                        raise
                    return rounds, f"round {number + 1}: {failed}"
            elif name in rivals_of_model:
                try:
                    result[name] = run_torch(rivals_of_model[name], contest, max(5, left), measured, steps)
                except (Failed, OutOfMemory) as failed:
                    why = str(failed)
                    rivals_of_model = {key: each for key, each in rivals_of_model.items() if key != name}
        rounds.append(result)
        longest = max(longest, time.monotonic() - begin)
    return rounds, why


def losses_differ(rounds):
    """(step, shardrun's loss, PyTorch's, what is implausible or None), at the last step that both have."""
    ours, theirs = rounds[0]["shardrun"]["losses"], rounds[0][DEFAULT]["losses"]
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
    for name in dict.fromkeys(name for each in rounds for name in each):
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
    times = {}
    for name in rows:
        both = [each for each in rounds if name in each and "shardrun" in each]
        if name != "shardrun" and both:
            times[name] = statistics.median(each[name]["step_ms"] / each["shardrun"]["step_ms"] for each in both)
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
        "times_rival": times,
        # What one has to know to read the ratio.
        "residual_stream": {"shardrun": "bfloat16", "PyTorch": "float32, as autocast leaves it"},
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
        attention = row["runs"][0].get("build", {}).get("attention")
        eager = attention is not None and not figures["rival_compiled"]
        rows.append(
            (
                f"{name}{f' (attention by {attention})' if name == DEFAULT else ''}{' eager' * eager}",
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
        for name, ratio in figures["times_rival"].items():
            lines.append(
                f"shardrun's speed over that of {name}: {ratio:.2f} ({len(rounds)} rounds); residual stream of ours "
                "bfloat16, of PyTorch's autocast float32"
            )
        for name, row in figures["contestants"].items():
            lines.append(f"{name}: {row['runs'][-1]['gpu']}")
        if DEFAULT in figures["times_rival"]:
            step, ours, theirs, wrong = losses_differ([each for each in rounds if DEFAULT in each])
            figures["loss"] = {"step": step, "shardrun": ours, "PyTorch": theirs}
            lines.append(f"loss of step {step}: {ours:.3f}, {theirs:.3f}")
            if wrong:
                raise Failed(wrong, {**figures, "lines": lines})
        if why:
            lines.append(f"what is missing: {why}")
        return figures, lines


# --- shardrun's own choices ------------------------------------------------------------------------------------------

WAYS = {
    "own attention": {"SHARDRUN_CUDA_DNN": "own"},
    "cuDNN not deterministic": {"SHARDRUN_CUDA_DNN": "cudnn-fastest"},
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
            ways.update((name, way) for name, way in WAYS.items() if "SHARDRUN_CUDA_DNN" in way)
        if not machine.has_own_products():
            ways.update((name, way) for name, way in WAYS.items() if "SHARDRUN_CUDA_PRODUCTS" in way)
            timed = machine.scratch / "timed-products"
            ways["products timed"] = {"SHARDRUN_CUDA_TIMED_PRODUCTS": str(timed)}
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
        if "products timed" in figures:
            shutil.copy(timed, options.out.resolve().with_name("gpu-timed-products.txt"))
        if lacks:
            raise Failed("; ".join(lacks), {**figures, "lines": table(rows)})
        return figures, table(rows)
