"""PyTorch as the rival of a race, which compiles every model before it."""

import os
import pathlib
import threading
import time

from contest import SHARE_OF_MEMORY
from machine import Skipped, end, run

HERE = pathlib.Path(__file__).resolve().parent
NOT_IN_TIME = "PyTorch had not compiled it in time"


class Rivals(threading.Thread):
    """Lets PyTorch compile every model, one after the other, while steps run whose times do not matter. The race then
    finds the kernels in the compiler's cache, and knows which batch the rival can take."""

    def __init__(self, machine, options, contests):
        super().__init__(daemon=True)
        self.machine, self.options, self.contests = machine, options, contests
        self.device = "cuda" if machine.torch and machine.torch["gpu"] else "cpu"
        self.lack = machine.torch_lacks
        if machine.torch and self.device == "cpu" and not options.small:
            self.lack = f"PyTorch {machine.torch['version']} sees no GPU"
        self.eager = set()  # models that this PyTorch cannot compile
        self.errors, self.seconds = {}, {}
        self.reduced = []  # of which models the batch, and why
        self.stopped, self.process = False, None
        self.environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(machine.scratch / "inductor"),
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
            if self.stopped:
                self.errors.setdefault(name, NOT_IN_TIME)
            elif contest.path is not None:
                try:
                    self.errors[name] = self._prepare(name, contest)
                except Exception as problem:  # of this script: the race goes on without this rival
                    self.errors[name] = f"{type(problem).__name__}: {problem}"
            self.seconds[name] = time.monotonic() - begin

    def _prepare(self, name, contest):
        """Why it cannot be done, or None."""
        while True:
            command = self.command(contest, "--set", "train.steps=3", "--warm", "1", "--memory-share", SHARE_OF_MEMORY)
            ran = run(command, 300, self.environment, started=self._keep)
            if ran.code == 0:
                return None
            if self.stopped:
                return NOT_IN_TIME
            if "out of memory" in (ran.out + ran.err).lower():
                batch = contest.batch
                if not contest.fit(below=batch):
                    return f"PyTorch, batch {batch}: {ran.last_words()}"
                self.reduced.append(f"{name}: batch {contest.batch} and not {batch}: {ran.last_words(200)}")
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
        self.stop()
        self.join(5)
        for name in self.contests:  # a race must not begin what there was no time for
            if name not in self.seconds:
                self.errors.setdefault(name, NOT_IN_TIME)
        seconds_of, errors = dict(self.seconds), {name: why for name, why in self.errors.items() if why}
        lines = [", ".join(f"{name} {taken:.0f} s" for name, taken in seconds_of.items())]
        lines += [f"{name}: {why}" for name, why in errors.items()]
        lines += self.reduced
        prepared = [name for name, contest in self.contests.items() if contest.path and name not in errors]
        if not prepared:
            raise Skipped("; ".join(lines[1:]) or "no model has a batch that fits")
        return {"seconds": seconds_of, "errors": errors, "prepared": prepared, "reduced": self.reduced}, lines
