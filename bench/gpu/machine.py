"""Finds the parts of the machine: GPU, PyTorch, CUDA's libraries, and the programs of the packed folder."""

import glob
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

from log import record_process


class Skipped(Exception):
    """A step that cannot be done on this machine; the message says why."""


class Failed(Exception):
    """A step that went wrong; `figures` is what is known all the same."""

    def __init__(self, message, figures=None):
        super().__init__(message)
        self.figures = figures or {}


class NoTime(Failed):
    """A step that found nothing wrong, and was cut off before it could say so."""


class Ran:
    """How a program ended: its exit code, or None if its time was over and it was killed."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def last_words(self, most=400):
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines() if line.strip()]
        return " | ".join(lines[-4:])[-most:] or f"nothing was said, exit code {self.code}"


def end(process):
    """Ends a program with all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


running, _ending = set(), threading.Event()  # processes with sessions of their own


def end_all():
    """Ends what is running, and what run() starts from now on. For the handler of a signal."""
    _ending.set()
    for process in list(running):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def run(command, seconds, environment=None, folder=None, text=None, started=None):
    """Runs a program in a session of its own, for at most so long. `started` is called with its process."""
    begin = time.monotonic()
    with subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.PIPE if text else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        cwd=folder,
        start_new_session=True,
    ) as process:
        running.add(process)
        try:
            if started:
                started(process)
            if _ending.is_set():
                end(process)
            out, err = process.communicate(text, timeout=max(0.1, seconds))
            code = process.returncode
        except subprocess.TimeoutExpired:
            end(process)
            out, err = process.communicate()
            code = None
        except BaseException:  # this script is asked to end
            end(process)
            raise
        finally:
            running.discard(process)
    seconds = time.monotonic() - begin
    record_process(command, environment, code, seconds, stdin=text, stdout=out, stderr=err)
    return Ran(code, out, err, seconds)


def library_folders(python):
    """Where cuBLASLt, cuDNN and NCCL lie: in the wheels of this Python, then in a toolkit; last the driver's own."""
    probe = "import site, sysconfig; print('\\n'.join({sysconfig.get_paths()['purelib'], *site.getsitepackages()}))"
    packages = run([python, "-c", probe], 20).out.split()
    packages += [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]
    found = [folder for place in packages for folder in sorted(glob.glob(f"{place}/nvidia/*/lib"))]
    toolkits = ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/local/nvidia/lib64")
    return list(dict.fromkeys([*found, *filter(os.path.isdir, toolkits)]))


def nccl_version(folders):
    """(2, 30, 4) of the libnccl.so.2 that a program finds, or None where there is none."""
    code = (
        "import ctypes; number = ctypes.c_int(); ctypes.CDLL('libnccl.so.2').ncclGetVersion(ctypes.byref(number));"
        "print(number.value)"
    )
    ran = run([sys.executable, "-c", code], 20, {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)})
    if ran.code != 0:
        return None
    number = int(ran.out)
    return number // 10000, number // 100 % 100, number % 100


def find_tool(name, hints):
    """A program of a toolkit, or None."""
    found = shutil.which(name)
    for pattern in () if found else hints:
        found = next((path for path in sorted(glob.glob(pattern)) if os.access(path, os.X_OK)), found)
    return found


class Watch:
    """Samples the GPU once a second: `most_mib` is the most of its memory in use by all, `median` of what its clocks,
    power and reasons to throttle were while it was busy. Both are empty without nvidia-smi."""

    ASKED = ("memory.used", "utilization.gpu", "clocks.sm", "power.draw", "temperature.gpu")
    REASONS = "clocks_event_reasons.active"

    def __init__(self):
        self.rows, self.reasons = [], {}

    def __enter__(self):
        tool = shutil.which("nvidia-smi")
        query = ",".join((*self.ASKED, self.REASONS))
        self.process = tool and subprocess.Popen(
            [tool, f"--query-gpu={query}", "--format=csv,noheader,nounits", "--id=0", "--loop-ms=1000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        if self.process:
            self.reader = threading.Thread(target=self._read)
            self.reader.start()
        return self

    def _read(self):
        for line in self.process.stdout:
            words = [word.strip() for word in line.split(",")]
            try:
                self.rows.append(dict(zip(self.ASKED, map(float, words[:-1]))))
            except ValueError:  # [N/A] of one of them
                continue
            self.reasons[words[-1]] = self.reasons.get(words[-1], 0) + 1

    def __exit__(self, *_):
        if self.process:
            end(self.process)
            self.reader.join()
            self.process.stdout.close()

    @property
    def most_mib(self):
        return max((int(row["memory.used"]) for row in self.rows), default=None)

    def said(self):
        """{clock, power, temperature: median of the busy samples; reasons: {mask: samples}}"""
        busy = [row for row in self.rows if row["utilization.gpu"] >= 50]
        medians = {name: statistics.median(row[name] for row in busy) for name in self.ASKED[1:] if busy}
        return {**medians, "busy_samples": len(busy), "reasons": self.reasons}


class Machine:
    """The packed folder on this machine."""

    def __init__(self, folder, python, scratch, results):
        """`results`: where runs leave what they computed, which may be many gigabytes."""
        self.folder, self.scratch, self.results = folder, scratch, results
        self.shardrun, self.kernel_checks = folder / "bin" / "shardrun", folder / "bin" / "kernel_checks"
        self.python = python
        self.cuda_folders = library_folders(python)
        # Folders that the user has chosen come before those that were found.
        searched = [*filter(None, [os.environ.get("LD_LIBRARY_PATH")]), *self.cuda_folders]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join([str(folder / "lib"), *searched])}
        self.nccl = nccl_version(searched)
        self.sanitizer = find_tool(
            "compute-sanitizer",
            (
                "/usr/local/cuda*/bin/compute-sanitizer",
                "/usr/local/cuda*/compute-sanitizer/compute-sanitizer",
                "/opt/nvidia/*/compute-sanitizer*",
            ),
        )
        self.units, self.lacks = [], "shardrun devices has not been asked"
        self.products = self.dnn = None
        self.torch, self.torch_lacks = None, "PyTorch has not been looked for"

    @property
    def gpu(self):
        return self.units[0]["name"] if self.units else None

    @property
    def memory(self):
        return self.units[0]["memory"] if self.units else 0

    def shardrun_json(self, words, seconds):
        ran = run([self.shardrun, *words, "--json"], seconds, self.environment)
        if ran.code != 0:
            raise Failed(f"shardrun {words[0]} ended with {ran.code}: {ran.last_words()}")
        return json.loads(ran.out)

    def look(self, seconds):
        """Asks for the GPU and for PyTorch; what is known. Throws Failed where the device cannot be used."""
        # The first import may read gigabytes from a slow disk, and without PyTorch there is no race.
        self.torch, self.torch_lacks = self._look_for_torch(max(seconds, 120))
        known = {
            "host": {
                "system": platform.platform(),
                "cores": len(os.sched_getaffinity(0)),
                "glibc": platform.libc_ver()[1],
            },
            "python": platform.python_version(),
            "torch": self.torch,
            "nccl": ".".join(map(str, self.nccl)) if self.nccl else None,
            "compute_sanitizer": self.sanitizer,
            "cuda_libraries": self.cuda_folders,
        }
        query = "name,driver_version,memory.total,clocks.max.sm,power.limit,compute_mode"
        if smi := shutil.which("nvidia-smi"):
            ran = run([smi, f"--query-gpu={query}", "--format=csv,noheader"], 20)
            known["nvidia_smi"] = [
                dict(zip(query.split(","), map(str.strip, line.split(","))))
                for line in ran.out.splitlines()
                if ran.code == 0
            ]
        try:
            cuda = next(each for each in self.shardrun_json(["devices"], seconds) if each["name"] == "cuda")
        except Failed as failed:
            raise Failed(str(failed), known) from failed
        self.units, self.lacks = cuda["units"], cuda["lacks"]
        self.products, _, self.dnn = (cuda["bf16_products"] or "").partition("; attention and convolutions: ")
        known.update(units=self.units, products=self.products, dnn=self.dnn)
        if not self.has_own_products():
            self.environment.setdefault("SHARDRUN_CUDA_PRODUCTS", "cublaslt")  # the job is refused if it is not found
        if self.lacks or not self.units:
            raise Failed(f"the device cuda cannot be used: {self.lacks or 'it has no units'}", known)
        return known

    def _look_for_torch(self, seconds):
        code = (
            "import json, torch; print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda,"
            "'gpu': torch.cuda.is_available(), 'gpus': torch.cuda.device_count(),"
            "'cudnn': torch.backends.cudnn.version() if torch.cuda.is_available() else None}))"
        )
        ran = run([self.python, "-c", code], seconds)
        if ran.code != 0:
            return None, f"{self.python} cannot import torch: {ran.last_words().split(' | ')[-1]}"
        return json.loads(ran.out), None

    @property
    def without_dnn(self):
        """The environment in which our own kernels compute attention and convolutions. cuDNN compiles a kernel for each
        shape, in up to 2 s: too long for the many shapes of checks."""
        return {**self.environment, "SHARDRUN_CUDA_DNN": "own"}

    def has_dnn(self):
        return bool(self.dnn) and not self.dnn.startswith("own kernels")

    def require_dnn(self):
        if not self.has_dnn():
            raise Skipped(f"attention and convolutions by {self.dnn or 'own kernels'}")

    def has_own_products(self):
        """Whether shardrun's own kernels multiply matrices, and not cuBLASLt."""
        return not self.products or self.products.startswith("own kernels")

    def require_gpu(self):
        if self.lacks:
            raise Skipped(f"the device cuda cannot be used: {self.lacks}")

    def require_torch(self, small):
        if self.torch is None:
            raise Skipped(self.torch_lacks)
        if not self.torch["gpu"] and not small:
            raise Skipped(f"PyTorch {self.torch['version']} sees no GPU")
