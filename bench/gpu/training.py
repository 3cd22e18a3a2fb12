"""The race: GPT-2 of several sizes, trained by shardrun and by PyTorch in turns."""

import json
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import threading
import time

from job import write_job
from machine import Failed, Memory, Skipped, end, run
from report import table
from tokens import write_tokens

HERE = pathlib.Path(__file__).resolve().parent

MODELS = {
    "124M": {"layers": 12, "heads": 12, "width": 768, "context": 1024, "learning_rate": 6e-4},
    "350M": {"layers": 24, "heads": 16, "width": 1024, "context": 1024, "learning_rate": 3e-4},
    "1.5B": {"layers": 48, "heads": 25, "width": 1600, "context": 1024, "learning_rate": 2e-4},
}
# GPT-2's vocabulary, padded to a multiple of 64 as in nanoGPT.
VOCABULARY = 50304
SMALL_MODELS = {"124M": {"layers": 2, "heads": 2, "width": 32, "context": 16, "learning_rate": 1e-3}}
SMALL_VOCABULARY = 96
BATCHES = (64, 48, 32, 24, 16, 12, 8, 6, 4, 2, 1)
# Of the GPU's memory that may be planned; the rest is for what CUDA itself takes.
SHARE_OF_MEMORY = 0.85
# PyTorch keeps more activations than shardrun plans. The batch of a race is one that both can take.
ACTIVATIONS_OF_PYTORCH = 1.8
# bfloat16 with dense operands, TFLOP/s, from NVIDIA's data sheets (SXM).
PEAKS = {"H100": 989, "H200": 989, "A100": 312}

STEPS, WARM = 40, 5
SECONDS_OF_A_RUN = 8
ROUNDS = 3
LARGEST_DIFFERENCE_OF_LOSSES = 0.05


class OutOfMemory(Exception):
    """The rival's; the message says with which batch."""


class Contest:
    """One model: its job file with the batch that fits."""

    def __init__(self, machine, options, name):
        self.machine, self.options, self.name = machine, options, name
        self.model = (SMALL_MODELS if options.small else MODELS)[name]
        self.vocabulary = SMALL_VOCABULARY if options.small else VOCABULARY
        self.batches = [4, 2] if options.small else list(BATCHES)
        self.batch = self.plan = self.path = None
        self.refused = None  # why the job cannot run at all

    def write(self, batch):
        tokens = self.machine.scratch / "trained.bin"
        if not tokens.exists():
            write_tokens(tokens, self.vocabulary, 20_000 if self.options.small else 1_000_000)
        model = {key: self.model[key] for key in ("layers", "heads", "width", "context")}
        job = {
            "job": {"device": "cuda:0", "seed": 1337},
            "model": {"name": "gpt", **model, "vocab": self.vocabulary, "bias": "false", "tied": "true", "gelu": "tanh"},
            "data": {"tokens": tokens, "batch": batch, "microbatches": 1, "split": 1},
            "train": {
                "steps": 8 if self.options.small else STEPS, "precision": "mixed", "optimizer": "adamw",
                "learning_rate": self.model["learning_rate"], "min_learning_rate": self.model["learning_rate"] / 10,
                "warmup": 2, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "clip": 1.0,
            },
        }
        path = self.machine.scratch / f"{self.name}-{batch}.ini"
        write_job(path, job)
        return path

    def fit(self, below=None):
        """Chooses the largest batch whose plan fits; it needs no GPU for that. False: there is none."""
        most = SHARE_OF_MEMORY * self.machine.memory
        factor = ACTIVATIONS_OF_PYTORCH if self.machine.torch else 1
        for batch in self.batches:
            if below is not None and batch >= below:
                continue
            path = self.write(batch)
            try:
                plan = self.machine.shardrun_json(["plan", path], 60)
            except Failed as failed:
                self.refused = str(failed)
                return False
            planned = plan["ranks"][0]["bytes"]
            if planned["peak"] + (factor - 1) * planned["activations"] <= most:
                self.batch, self.plan, self.path = batch, plan, path
                return True
        return False

    def require_batch(self):
        if self.refused:
            raise Failed(self.refused)
        if self.path is None:
            raise Skipped(f"no batch fits in {SHARE_OF_MEMORY:.0%} of {self.machine.memory / 2**30:.1f} GiB")

    @property
    def tokens_per_step(self):
        return self.batch * self.model["context"]

    def model_flops_per_token(self):
        """6N + 6·layers·context·width: N parameters without the positions, each multiplied in forward and twice in
        backward; the products of attention with half of the scores, because they are causal."""
        model = self.model
        matrices = self.plan["parameters"] - model["context"] * model["width"]
        return 6 * matrices + 6 * model["layers"] * model["context"] * model["width"]


class Rivals(threading.Thread):
    """Lets PyTorch compile every model, one after the other, while steps run whose times do not matter. The race then finds
    the kernels in the compiler's cache, and knows which batch the rival can take."""

    def __init__(self, machine, options, contests):
        super().__init__(daemon=True)
        self.machine, self.options, self.contests = machine, options, contests
        self.device = "cuda" if machine.torch and machine.torch["gpu"] else "cpu"
        self.lack = machine.torch_lacks
        if machine.torch and self.device == "cpu" and not options.small:
            self.lack = f"PyTorch {machine.torch['version']} sees no GPU"
        self.eager = set()  # models that this PyTorch cannot compile
        self.errors, self.seconds = {}, {}
        self.stopped, self.process = False, None
        self.environment = {
            **os.environ, "TORCHINDUCTOR_CACHE_DIR": str(machine.scratch / "inductor"),
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        }

    def command(self, contest, *words):
        threads = min(8, len(os.sched_getaffinity(0)))
        command = [self.machine.python, HERE.parent / "torch_gpt.py", contest.path, "--device", self.device]
        compiled = self.device == "cuda" and contest.name not in self.eager
        return [*command, "--threads", threads, *words, *(["--compile"] if compiled else [])]

    def why_not(self, name):
        """Why the rival cannot train a model, or None."""
        return self.lack or self.errors.get(name)

    def run(self):
        for name, contest in self.contests.items():
            begin = time.monotonic()
            if contest.path is not None and not self.stopped:
                try:
                    self.errors[name] = self._prepare(name, contest)
                except Exception as problem:  # of this script: the race goes on without this rival
                    self.errors[name] = f"{type(problem).__name__}: {problem}"
            self.seconds[name] = time.monotonic() - begin

    def _prepare(self, name, contest):
        """Why it cannot be done, or None."""
        while True:
            command = self.command(contest, "--set", "train.steps=3", "--warm", "1")
            ran = run(command, 300, self.environment, started=self._keep)
            if ran.code == 0:
                return None
            if self.stopped:
                return f"PyTorch had not compiled {name} in time"
            if "out of memory" in (ran.out + ran.err).lower():
                if not contest.fit(below=contest.batch):
                    return f"PyTorch, batch {contest.batch}: {ran.last_words()}"
            elif "--compile" in command:
                self.errors[f"{name} compiled"] = ran.last_words()
                self.eager.add(name)
            else:
                return f"PyTorch, batch {contest.batch}: {ran.last_words()}"

    def _keep(self, process):
        self.process = process
        if self.stopped:
            end(process)

    def stop(self):
        """Ends what is being compiled."""
        self.stopped = True
        if self.is_alive() and self.process is not None:
            end(self.process)

    def finish(self, machine, options, seconds):
        """The step before those whose times matter: waits until all is compiled."""
        if self.lack:
            raise Skipped(self.lack)
        self.join(max(1, seconds - 5))
        in_time = not self.is_alive()
        self.stop()
        self.join(5)
        figures = {"seconds": self.seconds, "errors": {name: why for name, why in self.errors.items() if why}}
        lines = [", ".join(f"{name} {taken:.0f} s" for name, taken in self.seconds.items())]
        lines += [f"{name}: {why}" for name, why in figures["errors"].items()]
        if not in_time:
            raise Failed("PyTorch had not compiled all models in time", {**figures, "lines": lines})
        return figures, lines


# --- the contestants -------------------------------------------------------------------------------------------------


def metrics_of(folder):
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def run_shardrun(machine, contest, seconds, measured, settings=()):
    """One run of the job, stopped when its steps have taken `measured` seconds; its steps and its memory."""
    folder = machine.results / "run"
    shutil.rmtree(folder, ignore_errors=True)
    command = [machine.shardrun, contest.path, "--set", f"job.output={folder}"]
    for setting in settings:
        command += ["--set", setting]
    begin, asked, log = time.monotonic(), None, machine.scratch / "run.log"
    to_end = 8 + contest.plan["disk"]["result_bytes"] / 1e9  # it writes its weights first
    with open(log, "w", encoding="utf-8") as file, Memory() as memory:
        process = subprocess.Popen([str(word) for word in command], stdout=file, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, env=machine.environment, start_new_session=True)
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
        raise Failed(f"shardrun, batch {contest.batch}: ended with {process.returncode} after {len(lines)} steps: "
                     + " | ".join(said[-3:])[-500:])
    summary = folder / "summary.json"
    memory_of_rank = json.loads(summary.read_text())["ranks"][0] if summary.exists() else {}
    times = [line["step_s"] for line in lines]
    return {
        "losses": [line["loss"] for line in lines],
        "step_ms": 1000 * statistics.median(times[min(WARM, len(times) // 3):]),
        "steps": len(lines),
        "planned_bytes": memory_of_rank.get("planned_bytes"),
        "peak_bytes": memory_of_rank.get("peak_bytes"),
        "gpu_mib": memory.most,
        "seconds": time.monotonic() - begin,
    }


def run_torch(rivals, contest, seconds, measured):
    begin = time.monotonic()
    steps = 8 if rivals.options.small else STEPS
    with Memory() as memory:
        ran = run(rivals.command(contest, "--warm", min(WARM, steps // 3), "--seconds", measured), seconds, rivals.environment)
    if "out of memory" in (ran.out + ran.err).lower():
        raise OutOfMemory(f"PyTorch, batch {contest.batch}: {ran.last_words(200)}")
    if ran.code != 0:
        why = f"not done within {seconds:.0f} s" if ran.code is None else ran.last_words()
        raise Failed(f"PyTorch, batch {contest.batch}: {why}")
    said = json.loads(ran.out)
    if said["parameters"] != contest.plan["parameters"]:
        raise Failed(f"PyTorch trains {said['parameters']} parameters, shardrun {contest.plan['parameters']}: these are not the "
                     "same model")
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
                share = 1 if why or rounds or "PyTorch" in result else 0.6
                result[name] = run_shardrun(machine, contest, max(12, share * left), measured)
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


def figures_of(machine, options, contest, rounds):
    flops = contest.model_flops_per_token()
    peak = options.peak_tflops or next((peak for name, peak in PEAKS.items() if name in (machine.gpu or "")), None)
    rows = {}
    for name in ("shardrun", "PyTorch"):
        runs = [each[name] for each in rounds if name in each]
        if not runs:
            continue
        ms = statistics.median(each["step_ms"] for each in runs)
        rate = 1000 * contest.tokens_per_step / ms
        rows[name] = {
            "step_ms": ms, "step_ms_rounds": [each["step_ms"] for each in runs], "tokens_per_s": rate,
            "model_tflops": rate * flops / 1e12, "share_of_peak": rate * flops / 1e12 / peak if peak else None,
            "peak_bytes": max((each["peak_bytes"] or 0 for each in runs)) or None,
            "gpu_mib": max((each["gpu_mib"] or 0 for each in runs)) or None, "runs": runs,
        }
    both = [each for each in rounds if len(each) == 2]
    ratio = statistics.median(each["PyTorch"]["step_ms"] / each["shardrun"]["step_ms"] for each in both) if both else None
    return {
        "batch": contest.batch, "context": contest.model["context"], "parameters": contest.plan["parameters"],
        "planned_bytes": contest.plan["ranks"][0]["bytes"]["peak"],
        "plan_flops_per_step": contest.plan["flops_per_step"],
        "model_flops_per_step": flops * contest.tokens_per_step, "flops_formula": "6N + 6*layers*context*width a token",
        "peak_tflops": peak, "contestants": rows, "times_pytorch": ratio,
    }


def lines_of(contest, figures):
    rows = [(f"batch {contest.batch} x {contest.model['context']}", "step ms", "tokens/s", "TFLOP/s", "of peak", "GiB", "GPU MiB")]
    for name, row in figures["contestants"].items():
        eager = name == "PyTorch" and not figures["rival_compiled"]
        rows.append((
            f"{name}{' eager' * eager}", f"{row['step_ms']:.1f}", f"{row['tokens_per_s']:,.0f}", f"{row['model_tflops']:.1f}",
            f"{row['share_of_peak']:.1%}" if row["share_of_peak"] is not None else "?",
            f"{row['peak_bytes'] / 2**30:.2f}" if row["peak_bytes"] else "?", row["gpu_mib"] or "?",
        ))
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
        if figures["times_pytorch"]:
            step, ours, theirs, wrong = losses_differ([each for each in rounds if len(each) == 2])
            figures["loss"] = {"step": step, "shardrun": ours, "PyTorch": theirs}
            lines.append(f"shardrun's speed over PyTorch's {figures['times_pytorch']:.2f} ({len(rounds)} rounds); loss of step "
                         f"{step}: {ours:.3f}, {theirs:.3f}")
            if wrong:
                raise Failed(wrong, {**figures, "lines": lines})
        if why:
            lines.append(f"without the rival: {why}")
        return figures, lines
