"""The steps that check kernels: all are compared with float64 kernels, and some run under compute-sanitizer."""

import concurrent.futures
import json
import re
import time

from machine import Failed, NoTime, Skipped, run

# The ops that GPT-2 needs come first: time may end before the rest, above all under a sanitizer, which is a hundred
# times slower.
FIRST_OPS = (
    "matmul",
    "matmul_gradient_weights",
    "attention",
    "attention_gradient",
    "layer_norm",
    "layer_norm_gradient_input",
    "layer_norm_gradient_gain",
    "embedding",
    "embedding_gradient",
    "token_loss",
    "token_loss_gradient_sum",
    "softmax_terms",
    "softmax_terms_gradient",
    "row_max",
    "adamw",
    "square_sum",
    "sum_all",
    "gelu",
    "gelu_gradient",
    "dropout",
    "transpose",
)
FEW_OPS = ("matmul", "layer_norm", "adamw")
PRODUCTS = ("matmul", "matmul_gradient_weights", "einsum")
DNN = (
    "attention",
    "attention_gradient",
    "conv",
    "conv_gradient_input",
    "conv_gradient_weights",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_gradient",
)


# The references in float64 take most of the time.
PROCESSES = 4
# A check that takes longer than this hangs.
PATIENCE = ("--patience", "8")


def known_ops(machine):
    """All ops, the first first."""
    said = run([machine.kernel_checks, "--list"], 20, machine.environment).out
    known = [line.split()[0] for line in said.splitlines() if line.strip()]
    return [op for op in FIRST_OPS if op in known] + [op for op in known if op not in FIRST_OPS]


def summary_of(path, ran):
    if not path.exists():
        raise Failed(f"kernel_checks ended with {ran.code}: {ran.last_words()}")
    summary = json.loads(path.read_text())
    if summary["unusable"]:
        raise Failed(f"the device cannot be used: {summary['unusable']}", summary)
    return summary


def merged(summaries):
    """One summary of the processes' summaries."""
    sums = {key: sum(each[key] for each in summaries) for key in ("ops", "cases", "runs", "failed")}
    lists = {key: [item for each in summaries for item in each[key]] for key in ("failures", "not_run")}
    by_op = {op: of for each in summaries for op, of in each["by_op"].items()}
    return {**sums, **lists, "by_op": by_op, "passed": all(each["passed"] for each in summaries)}


def kernels(machine, options, seconds):
    """All kernels of the device against float64; those of cuDNN are a step of their own."""
    ops = list(FEW_OPS) if options.small else known_ops(machine)
    machine.require_gpu()

    def check(number):
        path = machine.scratch / f"kernels-{number}.json"
        command = [machine.kernel_checks, "--json", path, "--seconds", f"{max(1, seconds - 12):.0f}", *PATIENCE]
        command += ["--largest", "100"] if options.small else []
        command += ["--ops", ",".join(ops[number::PROCESSES])]
        return summary_of(path, run(command, seconds, machine.without_dnn))

    with concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
        summary = merged(list(pool.map(check, range(min(PROCESSES, len(ops))))))
    slowest = sorted(summary["by_op"].items(), key=lambda each: -each[1]["seconds"])[:5]
    done = summary["ops"] - len(summary["not_run"])
    lines = [
        f"products by {machine.products}: {done} of {summary['ops']} ops, {summary['cases']} cases, "
        + f"{summary['runs']} runs, {summary['failed']} failures; "
        + "slowest: "
        + ", ".join(f"{op} {of['seconds']:.1f} s" for op, of in slowest)
    ]
    lines += [
        f"FAILED {each['op']}: {each['check']}: {each['case']}: {each['what']}" for each in summary["failures"][:8]
    ]
    if not summary["passed"]:
        what = f"{summary['failed']} failures"
        if summary["not_run"]:
            what += f"; {len(summary['not_run'])} ops not run to their end: {', '.join(summary['not_run'])}"
        raise Failed(what, {**summary, "lines": lines})
    return summary, lines


def own_products(machine, options, seconds):
    """The kernels of products that take over where cuBLASLt is missing or has no algorithm."""
    machine.require_gpu()
    if machine.has_own_products():
        raise Skipped("they are what the step kernels has checked")
    path = machine.scratch / "own_products.json"
    command = [machine.kernel_checks, "--json", path, "--ops", ",".join(PRODUCTS), *PATIENCE]
    command += ["--seconds", f"{max(1, seconds - 12):.0f}"]
    command += ["--largest", "100"] if options.small else []
    summary = summary_of(path, run(command, seconds, {**machine.without_dnn, "SHARDRUN_CUDA_PRODUCTS": "own"}))
    lines = lines_of(summary)
    if not summary["passed"]:
        what = f"{summary['failed']} failures, not run to their end: {summary['not_run']}"
        raise Failed(what, {**summary, "lines": lines})
    return summary, lines


def lines_of(summary):
    return [f"{summary['cases']} cases, {summary['runs']} runs, {summary['failed']} failures"] + [
        f"FAILED {each['op']}: {each['check']}: {each['case']}: {each['what']}" for each in summary["failures"][:4]
    ]


def cudnn(machine, options, seconds):
    """Attention and convolutions by cuDNN against float64, op by op, as far as the time goes: it compiles a kernel for
    each shape."""
    machine.require_gpu()
    machine.require_dnn()
    known = known_ops(machine)
    ops = [op for op in DNN if op in known]
    environment = {**machine.environment, "SHARDRUN_CUDA_DNN": "cudnn"}  # refused if it is not found
    limit, figures, lines, wrong, late = time.monotonic() + seconds, {}, [], [], []
    for number, op in enumerate(ops):
        path = machine.scratch / f"cudnn-{op}.json"
        share = (limit - time.monotonic()) / (len(ops) - number)
        if share < 2:
            late.append(op)
            continue
        command = [machine.kernel_checks, "--json", path, "--ops", op, "--seconds", f"{max(1, share - 1):.0f}", *PATIENCE]
        command += ["--largest", "100"] if options.small else []
        summary = figures[op] = summary_of(path, run(command, share + 12, environment))
        lines += [f"{op}: {line}" for line in lines_of(summary)]
        if summary["failed"] or summary["cases"] == 0:
            wrong.append(f"{op}: {summary['cases']} cases, {summary['failed']} failures")
        elif summary["not_run"]:
            late.append(op)
    if wrong:
        raise Failed("; ".join(wrong), {**figures, "lines": lines})
    if late:
        lines.append(f"not run to their end: {', '.join(late)}")
    return figures, [f"by {machine.dnn}", *lines]


# --- compute-sanitizer -----------------------------------------------------------------------------------------------

FOUND = re.compile(r"=+ (Invalid|Error|Warning)")
# So many cases of each op: the tools, racecheck most of all, make a case about a hundred times slower.
TOOLS = {"memcheck": 8, "racecheck": 3}
SECONDS_TO_REPORT = 5


def watched(machine, options, tool, number, ops, seconds):
    """One process under a tool: {ran, said, errors: of each report of the tool, summary or None}."""
    path = machine.scratch / f"{tool}-{number}.json"
    words = f"--tool {tool} --target-processes all --require-cuda-init no --launch-timeout 60 --error-exitcode 99"
    # The checks themselves ask each call of CUDA whether it failed, so the tool does not report that.
    words += " --report-api-errors no --print-limit 20"
    largest = 100 if options.small else 3000
    # The checks end by themselves when their time is over. Then the tool needs time for its report.
    checks = f"--patience 0 --separate --largest {largest} --cases {TOOLS[tool]}"
    checks += f" --seconds {max(2, seconds - SECONDS_TO_REPORT):.0f}"
    command = [machine.sanitizer, *words.split(), machine.kernel_checks, *checks.split()]
    ran = run([*command, "--ops", ",".join(ops), "--json", path], seconds, machine.without_dnn)
    said = ran.out + ran.err
    reports = [r"ERROR SUMMARY: (\d+) error", r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error"]
    errors = [int(number) for report in reports for number in re.findall(report, said)]
    summary = json.loads(path.read_text()) if path.exists() else None
    return {"ran": ran, "said": said, "errors": errors, "summary": summary}


def sanitizer(machine, options, seconds):
    """compute-sanitizer over some small cases of each kernel, the most important ops first, as far as the time goes."""
    machine.require_gpu()
    if machine.sanitizer is None:
        raise Skipped("compute-sanitizer is not in PATH and in no toolkit of this machine")
    ops = FEW_OPS if options.small else known_ops(machine)
    figures, lines, wrong, late = {"path": machine.sanitizer}, [], [], []
    limit = time.monotonic() + seconds
    for position, (tool, cases) in enumerate(TOOLS.items()):
        share = max(5, (limit - time.monotonic()) / (len(TOOLS) - position))
        with concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
            processes = list(
                pool.map(
                    lambda number, tool=tool, share=share: watched(
                        machine, options, tool, number, ops[number::PROCESSES], share
                    ),
                    range(min(PROCESSES, len(ops))),
                )
            )
        errors = sum(sum(each["errors"]) for each in processes)
        summary = merged([each["summary"] for each in processes if each["summary"]])
        figures[tool] = {
            "exit_codes": [each["ran"].code for each in processes],
            "errors": errors,
            "checks": summary,
            "said": [each["said"][-2000:] for each in processes],
        }
        for each in processes:
            checks = each["summary"]
            if each["ran"].code is None and not sum(each["errors"]) and not (checks and checks["failed"]):
                late.append(f"{tool} was cut off after {share:.0f} s, without an error so far")
            elif checks is None or not each["errors"]:
                wrong.append(f"{tool} did not report: {each['ran'].last_words()}")
            elif checks["unusable"]:
                wrong.append(f"{tool}: {checks['unusable']}")
        lines.append(
            f"{tool}: {errors} errors; up to {cases} cases of an op, {summary['ops'] - len(summary['not_run'])} of "
            f"{len(ops)} ops to their end, {summary['cases']} cases, {summary['failed']} wrong results"
        )
        if errors or any(each["ran"].code == 99 for each in processes):
            words = [line.strip("= ") for each in processes for line in each["said"].splitlines() if FOUND.search(line)]
            wrong.append(f"{tool}: {errors} errors: {words[0] if words else ''}")
        if summary["failed"]:
            wrong.append(f"{tool}: {summary['cases']} cases, {summary['failed']} failures")
        without = [op for op in ops if op in FIRST_OPS and not summary["by_op"].get(op, {}).get("cases")]
        if without and not wrong:
            late.append(f"{tool} had no time for {', '.join(without)}")
    if wrong:
        raise Failed("; ".join(wrong + late), {**figures, "lines": lines})
    if late:
        raise NoTime("; ".join(dict.fromkeys(late)), {**figures, "lines": lines})
    return figures, lines
