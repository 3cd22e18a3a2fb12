"""The step that trains over NCCL with several ranks on one GPU, even with an NCCL that allows one rank per host and GPU."""

import concurrent.futures
import secrets
import shutil
import socket
import time

from log import record_files
from machine import Failed, Skipped, run
from split_jobs import can_nccl, write_verified_job
from training import metrics_of

RANKS, STEPS = 2, 4
# NCCL does not promise that two of its ranks on one GPU make progress. A job that hangs costs no more than this.
MOST_SECONDS = 30
LARGEST_DIFFERENCE_OF_LOSSES = 1e-5
SETTINGS = (
    f"job.ranks={RANKS}",
    "job.strategy=dp",
    "job.device=cuda:0,0",
    "job.threads=1",
    "job.timeout=20",
    "train.precision=float32",
    f"train.steps={STEPS}",
)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def variables_of(rank, port, token):
    """Of a rank that is started by hand. NCCL takes processes with other NCCL_HOSTID for processes of other hosts, and
    refuses a GPU that stands twice in one host only. It then connects the ranks by sockets."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "SHARDRUN_TOKEN": token,
        "NCCL_HOSTID": f"r{rank}",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_NET": "Socket",
        "NCCL_DEBUG": "INFO",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    }


def train(machine, job, transport, variables, seconds):
    """The losses of the job, whose processes are started with these variables."""
    folder = machine.results / f"job-{transport}"
    shutil.rmtree(folder, ignore_errors=True)
    command = [machine.shardrun, job]
    for setting in (*SETTINGS, f"job.transport={transport}", f"job.output={folder}"):
        command += ["--set", setting]

    def start(own):
        return run(command, seconds, {**machine.without_dnn, **own})

    with concurrent.futures.ThreadPoolExecutor(len(variables)) as pool:
        ended = list(pool.map(start, variables))
    losses = [line["loss"] for line in metrics_of(folder)]
    wrong = [
        f"process {number}: "
        + (f"not done within {seconds:.0f} s" if ran.code is None else f"exit code {ran.code}: {ran.last_words()}")
        for number, ran in enumerate(ended)
        if ran.code != 0
    ]
    if wrong or len(losses) != STEPS:
        if folder.exists():
            record_files(folder)
        raise Failed(f"over {transport}, after {len(losses)} steps: {'; '.join(wrong) or 'steps are missing'}")
    return losses


def nccl(machine, options, seconds):
    """Two processes share a GPU, each on a host of its own as NCCL sees it; their losses are those over shm."""
    machine.require_gpu()
    if machine.nccl is None:
        raise Skipped("there is no libnccl.so.2")
    try:
        can_nccl(machine)
    except Skipped:
        pass
    else:
        several = f"{len(machine.units)} GPUs" if len(machine.units) > 1 else "this NCCL lets several ranks use a GPU"
        raise Skipped(f"{several}: the step verify has its cases over NCCL")
    begin = time.monotonic()
    seconds = min(seconds, MOST_SECONDS)
    job = write_verified_job(machine, options.small)
    over_shm = train(machine, job, "shm", [{}], seconds)
    port, token = free_port(), secrets.token_hex(32)
    ranks = [variables_of(rank, port, token) for rank in range(RANKS)]
    over_nccl = train(machine, job, "nccl", ranks, max(3, seconds - (time.monotonic() - begin)))
    worst = max(abs(ours - theirs) / abs(theirs) for ours, theirs in zip(over_nccl, over_shm))
    figures = {"over_shm": over_shm, "over_nccl": over_nccl, "largest_difference": worst}
    version = ".".join(map(str, machine.nccl))
    lines = [f"NCCL {version}, {RANKS} processes on one GPU: {STEPS} steps, losses differ by at most {worst:.1e}"]
    if not worst <= LARGEST_DIFFERENCE_OF_LOSSES:
        raise Failed(f"the losses are not those over shm: {over_nccl}, {over_shm}", {**figures, "lines": lines})
    return figures, lines
