#!/usr/bin/env python3
"""Trains a job's gpt with PyTorch, on the CPU or a GPU, and prints how long each step took, as JSON.
`[train] precision = mixed` is autocast to bfloat16, with parameters and optimizer in float32.

`bench/train` and `bench/gpu/run` run this script to compare shardrun with PyTorch. It can also be used alone:

    python3 bench/torch_gpt.py job.ini --set data.text=corpus.txt --set train.steps=100 --threads 1
    python3 bench/torch_gpt.py job.ini --device cuda --compile

The script uses the fastest functions of the installed PyTorch (1.13 or later) that do not change the results: fused
causal attention, fused AdamW, one cross-entropy over all tokens; on GPUs also tf32 for float32, and batches that are
copied from pinned memory. A step includes the same as shardrun's step_s: drawing the batch, forward, backward, clipping,
the update, and reading the loss. On a GPU the loss is read two steps later, so that the host stays ahead, and the time of
a step is that between the ends of two consecutive steps.
"""

import argparse
import array
import contextlib
import json
import math
import re
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from job import JobError, read_job, setting_of

HAS_FUSED_ATTENTION = hasattr(F, "scaled_dot_product_attention")


class LayerNorm(nn.Module):
    """nn.LayerNorm with an optional bias, which 1.13 has not."""

    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, setting):
        super().__init__()
        self.heads, width, context = setting["heads"], setting["width"], setting["context"]
        self.dropout = setting["dropout"]
        self.qkv = nn.Linear(width, 3 * width, bias=setting["bias"])
        self.output = nn.Linear(width, width, bias=setting["bias"])
        if not HAS_FUSED_ATTENTION:
            self.register_buffer("future", torch.ones(context, context, dtype=torch.bool).triu(1))

    def forward(self, x):
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        attended = self.attend(query, key, value).transpose(1, 2).contiguous().view(batch, length, width)
        return F.dropout(self.output(attended), self.dropout, self.training)

    def attend(self, query, key, value):
        dropout = self.dropout if self.training else 0.0
        if HAS_FUSED_ATTENTION:
            return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        length = query.shape[2]
        scores = (query @ key.transpose(2, 3)) * (1.0 / math.sqrt(key.shape[3]))
        scores = scores.masked_fill(self.future[:length, :length], float("-inf"))
        return F.dropout(F.softmax(scores, dim=3), dropout) @ value


class Layer(nn.Module):
    def __init__(self, setting):
        super().__init__()
        width, bias = setting["width"], setting["bias"]
        self.dropout = setting["dropout"]
        self.approximate = {"tanh": "tanh", "erf": "none"}[setting["gelu"]]
        self.attention_norm = LayerNorm(width, bias)
        self.attention = Attention(setting)
        self.mlp_norm = LayerNorm(width, bias)
        self.up = nn.Linear(width, 4 * width, bias=bias)
        self.down = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        hidden = F.gelu(self.up(self.mlp_norm(x)), approximate=self.approximate)
        return x + F.dropout(self.down(hidden), self.dropout, self.training)


class Gpt(nn.Module):
    def __init__(self, setting):
        super().__init__()
        width = setting["width"]
        self.dropout = setting["dropout"]
        self.tokens = nn.Embedding(setting["vocab"], width)
        self.positions = nn.Embedding(setting["context"], width)
        self.layers = nn.ModuleList(Layer(setting) for _ in range(setting["layers"]))
        self.final_norm = LayerNorm(width, setting["bias"])
        self.head = nn.Linear(width, setting["vocab"], bias=False)
        if setting["tied"]:
            self.head.weight = self.tokens.weight

    def initialise(self):
        for name, parameter in self.named_parameters():
            if name.endswith(("output.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(self.layers)))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.ones_(parameter)

    def forward(self, inputs, targets):
        """The mean cross-entropy over all tokens."""
        x = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.final_norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def load_tokens(setting):
    """The tokens to train on, as int64; sets setting["vocab"] where the data decide it."""
    tokens = load_all_tokens(setting)
    if setting["vocab"] is None:
        raise JobError("[model] vocab is missing, and data.tokens does not tell it")
    return tokens[: int(setting["split"] * len(tokens))]


def load_all_tokens(setting):
    if setting["tokens"]:
        values = array.array("H")
        with open(setting["tokens"], "rb") as file:
            values.frombytes(file.read())
        if sys.byteorder == "big":
            values.byteswap()
        return torch.tensor(values, dtype=torch.int64)
    if not setting["text"]:
        raise JobError("the job names no data: set data.text or data.tokens")
    with open(setting["text"], "rb") as file:
        data = file.read()
    if setting["tokenizer"] == "byte":
        setting["vocab"] = setting["vocab"] or 256
        return torch.tensor(bytearray(data), dtype=torch.int64)
    text = data.decode()
    number = {character: index for index, character in enumerate(sorted(set(text)))}
    setting["vocab"] = setting["vocab"] or len(number)
    return torch.tensor([number[character] for character in text])


def draw_batch(tokens, setting, device):
    context = setting["context"]
    starts = torch.randint(len(tokens) - context, (setting["batch"],))
    parts = [torch.stack([tokens[i + shift : i + shift + context] for i in starts.tolist()]) for shift in (0, 1)]
    return [part.pin_memory().to(device, non_blocking=True) for part in parts] if device == "cuda" else parts


def make_optimizer(model, setting):
    """AdamW that decays matrices only; fused where this PyTorch has it for the device, else the faster eager loop."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": setting["weight_decay"]},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    options = {
        "lr": setting["learning_rate"],
        "betas": (setting["beta1"], setting["beta2"]),
        "eps": setting["epsilon"],
    }
    try:
        return torch.optim.AdamW(groups, fused=True, **options), "fused"
    except (TypeError, RuntimeError):  # there is no such option, or not for the CPU
        return torch.optim.AdamW(groups, foreach=False, **options), "loop"


def learning_rate(setting, step):
    """Linear warm-up, then half a cosine."""
    if step < setting["warmup"]:
        return setting["learning_rate"] * (step + 1) / (setting["warmup"] + 1)
    done = (step - setting["warmup"]) / max(1, setting["steps"] - setting["warmup"])
    low, high = setting["min_learning_rate"], setting["learning_rate"]
    return low + 0.5 * (1 + math.cos(math.pi * min(1.0, done))) * (high - low)


def train_step(model, optimizer, tokens, setting, rate, device):
    """The loss, which a GPU may still be computing."""
    inputs, targets = draw_batch(tokens, setting, device)
    for group in optimizer.param_groups:
        group["lr"] = rate
    total = 0.0
    optimizer.zero_grad(set_to_none=True)
    parts = setting["microbatches"]
    for part_inputs, part_targets in zip(inputs.tensor_split(parts), targets.tensor_split(parts)):
        with torch.autocast(device, torch.bfloat16, enabled=setting["precision"] == "mixed"):
            loss = model(part_inputs, part_targets)
        loss = loss * (len(part_inputs) / len(inputs))
        loss.backward()
        total += loss.detach()
    if setting["clip"] > 0:
        nn.utils.clip_grad_norm_(model.parameters(), setting["clip"])
    optimizer.step()
    return total


class HostClock:
    """Ends of steps where the host computes them."""

    def __init__(self):
        self.ends, self.losses = [time.perf_counter()], []

    def step_ended(self, loss):
        self.losses.append(float(loss))
        self.ends.append(time.perf_counter())

    def finish(self):
        """The steps' seconds and losses."""
        return [end - begin for begin, end in zip(self.ends, self.ends[1:])], self.losses


class GpuClock:
    """Ends of steps on a GPU. The host goes at most two steps ahead."""

    def __init__(self):
        self.ends, self.losses = [], []
        self._record()

    def _record(self):
        self.ends.append(torch.cuda.Event(enable_timing=True))
        self.ends[-1].record()

    def step_ended(self, loss):
        self.losses.append(loss)
        self._record()
        self.ends[max(0, len(self.ends) - 3)].synchronize()

    def finish(self):
        torch.cuda.synchronize()
        seconds = [begin.elapsed_time(end) / 1000 for begin, end in zip(self.ends, self.ends[1:])]
        return seconds, [float(loss) for loss in self.losses]


def build_of():
    """What this PyTorch computes with."""
    described = torch.__config__.show()

    def first(pattern):
        found = re.search(pattern, described)
        return found.group(1) if found else None

    blas = first(r"BLAS_INFO=(\w+)")
    if blas == "mkl":
        blas = "MKL " + (first(r"Math Kernel Library Version (\S+?)-") or "")
    else:  # a distribution's build is linked with whichever BLAS the system has
        with open("/proc/self/maps", encoding="utf-8") as maps:
            blas = ", ".join(sorted(set(re.findall(r"/([^/\n]+/libblas[^/\n]*)$", maps.read(), re.M)))) or blas
    return {
        "torch": torch.__version__,
        "blas": blas,
        "onednn": first(r"MKL-DNN v(\S+)"),
        "capability": first(r"CPU capability usage: (\S+)"),
        "cuda": torch.version.cuda,
    }


# The numbers of torch.nn.attention.SDPBackend.
ATTENTION_BACKENDS = {0: "math", 1: "FlashAttention", 2: "memory-efficient", 3: "cuDNN"}


def attention_of(setting, device):
    """The name of what computes attention in this job."""
    if not HAS_FUSED_ATTENTION:
        return "written out"
    if device != "cuda" or not hasattr(torch, "_fused_sdp_choice"):
        return "fused"
    width, heads = setting["width"], setting["heads"]
    dtype = torch.bfloat16 if setting["precision"] == "mixed" else torch.float32
    qkv = torch.empty(
        setting["batch"], setting["context"], 3 * width, device=device, dtype=dtype, requires_grad=True
    ).split(width, dim=2)
    query, key, value = (part.unflatten(2, (heads, width // heads)).transpose(1, 2) for part in qkv)
    number = torch._fused_sdp_choice(query, key, value, None, setting["dropout"], True)
    return ATTENTION_BACKENDS.get(number, f"backend {number}")


class Trainer:
    """A model with its data, which can be trained again and again from the same start, compiled once."""

    def __init__(self, setting, arguments):
        self.setting, self.arguments, self.device = setting, arguments, arguments.device
        torch.set_num_threads(arguments.threads)
        if self.device == "cuda":
            if arguments.memory_share:
                torch.cuda.set_per_process_memory_fraction(arguments.memory_share)
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        if arguments.flash:
            torch.backends.cuda.enable_mem_efficient_sdp(False)
            torch.backends.cuda.enable_math_sdp(False)
            if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
                torch.backends.cuda.enable_cudnn_sdp(False)
        self.tokens = load_tokens(setting)
        with torch.device(self.device) if self.device == "cuda" else contextlib.nullcontext():
            self.model = Gpt(setting)
        self.runnable = torch.compile(self.model) if arguments.compile else self.model
        self.attention = attention_of(setting, self.device)

    def rest(self):
        """Leaves the GPU's memory to others until the next run."""
        self.model.zero_grad(set_to_none=True)
        self.model.to("cpu")
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def train(self, steps, warm, most_seconds):
        """Runs the job's steps; what was measured."""
        setting, device = self.setting, self.device
        self.model.to(device)
        torch.manual_seed(setting["seed"])
        self.model.initialise()
        optimizer, optimizer_kind = make_optimizer(self.model, setting)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()

        began = time.perf_counter()
        clock = GpuClock() if device == "cuda" else HostClock()
        first_step = limit = None
        for step in range(steps):
            loss = train_step(self.runnable, optimizer, self.tokens, setting, learning_rate(setting, step), device)
            clock.step_ended(loss)
            if step == 0:
                if device == "cuda":
                    torch.cuda.synchronize()
                first_step = time.perf_counter() - began
            if most_seconds and step + 1 >= warm:
                limit = limit or time.perf_counter() + most_seconds
                if step + 1 > warm and time.perf_counter() >= limit:
                    break
        times, losses = clock.finish()

        median = statistics.median(times[warm:])
        return {
            "build": {
                **build_of(),
                "attention": self.attention,
                "optimizer": optimizer_kind,
                "compiled": self.arguments.compile,
            },
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "threads": self.arguments.threads,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "loss": losses[-1],
            "losses": losses,
            "first_step_s": first_step,
            "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
            "step_ms_median": 1000 * median,
            "tokens_per_s": setting["batch"] * setting["context"] / median,
            "step_ms": [round(1000 * t, 3) for t in times],
        }


def serve(trainer):
    """Compiles, then trains each time that a line of standard input asks for it: {"steps": …, "warm": …, "seconds": …}.
    Answers with a line of JSON each; the first says that it is ready."""
    trainer.train(3, 1, None)
    trainer.rest()
    print(json.dumps({"ready": True, "attention": trainer.attention}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        result = trainer.train(asked["steps"], asked["warm"], asked["seconds"])
        trainer.rest()
        print(json.dumps(result), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("job", help="a job file whose model is gpt")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", dest="overrides")
    parser.add_argument("--warm", type=int, default=5, help="first steps that the median leaves out (5)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, help="end so long after the warm steps, if the job has more")
    parser.add_argument("--memory-share", type=float, help="of the GPU's memory that may be taken (all)")
    parser.add_argument("--compile", action="store_true", help="train through torch.compile")
    parser.add_argument("--flash", action="store_true", help="FlashAttention, and not what PyTorch prefers")
    parser.add_argument("--serve", action="store_true", help="compile, then train each time that a line of input asks")
    arguments = parser.parse_args()
    try:
        setting = setting_of(read_job(arguments.job, arguments.overrides))
        if setting["steps"] <= arguments.warm:
            raise JobError(f"train.steps = {setting['steps']} leaves nothing after --warm {arguments.warm}")
        trainer = Trainer(setting, arguments)
        if arguments.serve:
            serve(trainer)
        else:
            print(json.dumps(trainer.train(setting["steps"], arguments.warm, arguments.seconds)))
    except JobError as error:
        raise SystemExit(f"torch_gpt: {error}") from error


main()
