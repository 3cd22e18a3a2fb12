"""PyTorch as the rival of a race: a process for each model, which compiles the model once and then trains it on request."""

import json
import os
import pathlib
import subprocess
import threading
import time

from contest import SHARE_OF_MEMORY
from log import record_process
from machine import Failed, Skipped, end, running

HERE = pathlib.Path(__file__).resolve().parent
NOT_IN_TIME = "PyTorch had not compiled it in time"
DEFAULT, FLASH = "PyTorch", "PyTorch, FlashAttention"
SECONDS_TO_COMPILE = 300


class OutOfMemory(Exception):
    """The rival's; the message says with which batch."""


class Rival:
    """torch_gpt.py --serve: compiled when it has said its first line."""

    def __init__(self, command, environment, scratch, name):
        self.command, self.environment, self.name = command, environment, name
        self.begin, self.lines, self.stopping = time.monotonic(), [], threading.Lock()
        self.err = open(scratch / f"{name.replace(' ', '-').replace(',', '')}.err", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.err,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
        running.add(self.process)
        self.ended, self.arrived = False, threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self.arrived:
                self.lines.append(line)
                self.arrived.notify_all()
        with self.arrived:
            self.ended = True
            self.arrived.notify_all()

    def answer(self, seconds):
        """The next line's object. Throws Failed or OutOfMemory; the process is then over."""
        with self.arrived:
            self.arrived.wait_for(lambda: self.lines or self.ended, timeout=seconds)
            line = self.lines.pop(0) if self.lines else None
        if line is not None and line.startswith("{"):
            return json.loads(line)
        is_late = line is None and not self.ended
        self.stop()
        said = self.said()
        words = " | ".join(said.strip().splitlines()[-4:])[-400:] or line or "nothing was said"
        if "out of memory" in said.lower():
            raise OutOfMemory(f"{self.name}: {words[-200:]}")
        raise Failed(f"{self.name}: " + (f"not done within {seconds:.0f} s" if is_late else words))

    def ask(self, steps, warm, measured, seconds):
        try:
            self.process.stdin.write(json.dumps({"steps": steps, "warm": warm, "seconds": measured}) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it is over: answer() says how
        return self.answer(seconds)

    def said(self):
        self.err.seek(0)
        return self.err.read()

    def stop(self):
        with self.stopping:
            if self.process.poll() is None:
                end(self.process)
            running.discard(self.process)
            if self.begin is not None:
                record_process(
                    self.command,
                    self.environment,
                    self.process.returncode,
                    time.monotonic() - self.begin,
                    stdout="".join(self.lines),
                    stderr=self.said(),
                )
                self.begin = None


class Rivals(threading.Thread):
    """Lets PyTorch compile the models of the chosen races, one after the other, while steps run whose times do not
    matter. The race then knows which batch the rival can take. Nothing is compiled any more when a race begins."""

    def __init__(self, machine, options, contests):
        super().__init__(daemon=True)
        self.machine, self.options, self.contests = machine, options, contests
        self.device = "cuda" if machine.torch and machine.torch["gpu"] else "cpu"
        self.lack = machine.torch_lacks
        if machine.torch and self.device == "cpu" and not options.small:
            self.lack = f"PyTorch {machine.torch['version']} sees no GPU"
        self.eager = set()  # models that this PyTorch cannot compile
        self.errors, self.seconds, self.attention = {}, {}, {}
        self.reduced = []  # the models with a smaller batch, and why
        self.rivals = {name: {} for name in contests}  # for each model {DEFAULT: …, FLASH: …}
        self.stopped = False  # nothing more is to be compiled
        self.compiling, self.lock = None, threading.Lock()  # the lock is for `stopped` and `compiling`
        self.environment = {
            **os.environ,
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        }

    def command(self, contest, *words):
        threads = min(8, len(os.sched_getaffinity(0)))
        command = [self.machine.python, HERE.parent / "torch_gpt.py", contest.path, "--device", self.device]
        compiled = self.device == "cuda" and contest.name not in self.eager
        command += ["--threads", threads, "--memory-share", SHARE_OF_MEMORY, "--serve"]
        return [*command, *words, *(["--compile"] if compiled else [])]

    def run(self):
        for name, contest in self.contests.items():
            begin = time.monotonic()
            if contest.path is not None:
                try:
                    self.errors[name] = self._prepare(name, contest)
                except Exception as problem:  # a mistake of this script: the race goes on without this rival
                    self.errors[name] = f"{type(problem).__name__}: {problem}"
            self.seconds[name] = time.monotonic() - begin

    def _start(self, contest, name, *words):
        """A rival that has compiled its model, and its first answer."""
        with self.lock:
            if self.stopped:
                raise Failed(NOT_IN_TIME)
            command, title = self.command(contest, *words), f"{name} {contest.name}"
            # A cache of its own: the key of a cached graph may not tell which attention was asked for.
            cache = self.machine.scratch / f"inductor-{contest.name}{''.join(words)}"
            environment = {**self.environment, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
            self.compiling = rival = Rival(command, environment, self.machine.scratch, title)
        try:
            ready = rival.answer(SECONDS_TO_COMPILE)
        except Failed as failed:
            raise Failed(NOT_IN_TIME if self.stopped else str(failed)) from failed
        finally:
            with self.lock:
                self.compiling = None
        if rival.process.poll() is not None:  # it was stopped in the moment that it was ready
            raise Failed(NOT_IN_TIME)
        return rival, ready

    def _prepare(self, name, contest):
        """Why it cannot be done, or None."""
        while True:
            try:
                rival, ready = self._start(contest, DEFAULT)
                break
            except OutOfMemory as problem:
                batch = contest.batch
                if not contest.fit(below=batch):
                    return f"batch {batch}: {problem}"
                self.reduced.append(f"{name}: batch {contest.batch} and not {batch}: {problem}")
            except Failed as failed:
                if self.stopped:
                    return NOT_IN_TIME
                if self.device != "cuda" or name in self.eager:
                    return str(failed)
                self.errors[f"{name} compiled"] = str(failed)
                self.eager.add(name)
        self.rivals[name][DEFAULT] = rival
        self.attention[name] = ready["attention"]
        if name == next(iter(self.contests)) and ready["attention"] not in ("FlashAttention", "fused", "written out"):
            try:
                self.rivals[name][FLASH], _ = self._start(contest, FLASH, "--flash")
            except (Failed, OutOfMemory) as problem:
                self.errors[f"{name}, FlashAttention"] = str(problem)
        return None

    def of(self, name):
        """({DEFAULT: Rival, …}, why there is none or None), for a race: what is still being compiled is stopped."""
        self.stop_compiling()
        return self.rivals[name], self.lack or self.errors.get(name)

    def stop_compiling(self):
        """Ends what is being compiled, and begins no more. What is compiled stays ready."""
        with self.lock:
            self.stopped = True
            if self.compiling is not None:
                self.compiling.stop()
        if self.is_alive():
            self.join()

    def stop(self):
        """Ends all."""
        self.stop_compiling()
        for rival in (each for rivals in self.rivals.values() for each in rivals.values()):
            rival.stop()

    def finish(self, machine, options, seconds):
        """The step before those whose times matter: waits until all models are compiled, as far as the time goes."""
        if self.lack:
            raise Skipped(self.lack)
        self.join(max(1, seconds - 2))
        self.stop_compiling()
        errors = {name: why for name, why in self.errors.items() if why}
        lines = [f"{name} {taken:.0f} s, attention by {self.attention.get(name)}" for name, taken in self.seconds.items()]
        lines += [f"{name}: {why}" for name, why in errors.items()]
        lines += self.reduced
        figures = {"seconds": dict(self.seconds), "errors": errors, "attention": self.attention, "reduced": self.reduced}
        if not any(self.rivals.values()):
            raise Skipped("; ".join(lines) or "no model has a batch that fits")
        return figures, lines
