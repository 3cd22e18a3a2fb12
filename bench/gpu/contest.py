"""A race's subject: a model, its job file, and the largest batch that fits."""

from job import write_job
from machine import Failed, Skipped
from tokens import write_tokens

# In the order in which they are compiled and trained. There may be no time for the last one.
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
# How much of the GPU's memory may be planned. The rest is for CUDA itself.
SHARE_OF_MEMORY = 0.85
# A race has a batch that both can take. This is an estimate of PyTorch's activations, divided by those that
# shardrun plans.
ACTIVATIONS_OF_PYTORCH = 1.8
# The steps of a run.
STEPS, STEPS_OF_SMALL = 40, 8


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
            "model": {
                "name": "gpt",
                **model,
                "vocab": self.vocabulary,
                "bias": "false",
                "tied": "true",
                "gelu": "tanh",
            },
            "data": {"tokens": tokens, "batch": batch, "microbatches": 1, "split": 1},
            "train": {
                "steps": STEPS_OF_SMALL if self.options.small else STEPS,
                "precision": "mixed",
                "optimizer": "adamw",
                "learning_rate": self.model["learning_rate"],
                "min_learning_rate": self.model["learning_rate"] / 10,
                "warmup": 2,
                "weight_decay": 0.1,
                "beta1": 0.9,
                "beta2": 0.95,
                "clip": 1.0,
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
