#include "core/job/schema_sections.h"

namespace shardrun::job {

using enum OptionType;

namespace {

/// A range is resolved later, like `auto`.
void store_ranks(Job& job, const OptionSpec&, const OptionValue& value) {
  if (const auto* const range = std::get_if<IntegerRange>(&value)) {
    job.elastic_ranks = *range;
    job.ranks = 0;
  } else {
    job.ranks = std::get<std::int64_t>(value);
  }
}

void store_checks(Job& job, const OptionSpec&, const OptionValue& value) {
  const auto& names = std::get<std::vector<std::string>>(value);
  const auto has = [&](const char* name) { return std::ranges::find(names, name) != names.end(); };
  job.checks = {
      .states = has("states"), .transfers = has("transfers"), .replay = has("replay"), .replicas = has("replicas")};
}

}  // namespace

Section job_section() {
  return {
      .name = "job",
      .help = "What is run, and where its results go.",
      .settings =
          {
              {{.name = "ranks",
                .type = integer,
                .default_value = "1",
                .minimum = 1,
                .help = "Number of processes that share the work. shardrun starts them, or mpirun, srun or another "
                        "launcher has started as many. auto is the product of [mesh]. Without [mesh] auto is the "
                        "launcher's number of processes, or one rank for each core that this process may use; on GPUs, "
                        "one for each that device names or that this machine has. A range such as 2..8 is as many as "
                        "auto, but within the range, and as many as strategy and mesh accept. After a failure the job "
                        "may go on with fewer ([job] restarts).",
                .automatic = true,
                .ranged = true,
                .aliases = {"world_size", "nproc", "nprocs", "nproc_per_node", "num_processes", "num_procs", "np",
                            "ntasks", "num_gpus", "n_gpus", "ngpus", "gpus", "num_devices", "devices", "workers",
                            "num_ranks", "nranks"}},
               store_ranks},
              {{.name = "strategy",
                .type = text,
                .default_value = SHARDRUN_DEFAULT_STRATEGY,
                .help = "The plugin that decides how the work is split; [strategy] holds its options.",
                .aliases = {"parallelism", "parallel", "parallel_mode", "distributed_strategy", "sharding_strategy",
                            "zero_stage", "zero_optimization", "use_fsdp", "use_distributed_optimizer",
                            "distributed_type"}},
               into(&Job::strategy, &Chosen::name)},
              {{.name = "engine",
                .type = text,
                .help =
                    "The plugin that each rank runs in place of a model that is split by a strategy; [engine] holds "
                    "its options.",
                .optional = true},
               into(&Job::engine, &Chosen::name)},
              {{.name = "checkpoint",
                .type = path,
                .help =
                    "What is loaded before anything else: for an engine a safetensors file, for a model that predicts "
                    "the folder of a run, its weights.safetensors, or the folder of a checkpoint.",
                .optional = true},
               into(&Job::checkpoint)},
              {{.name = "transport",
                .type = text,
                .default_value = SHARDRUN_DEFAULT_TRANSPORT,
                .help =
                    "The plugin that moves data between ranks; [transport] may name others for some mesh axes. auto: "
                    "for each axis what suits where its ranks are, and the device.",
                .aliases = {"backend", "dist_backend", "distributed_backend", "process_group_backend", "comm_backend",
                            "communication_backend"}},
               into(&Job::transport)},
              {{.name = "device",
                .type = text,
                .default_value = "cpu",
                .help = "Where the ranks compute; shardrun devices lists what there is. With cuda, rank i of a machine "
                        "uses its GPU i; cuda:0,2 names the GPU of each rank. reference is only for shardrun verify to "
                        "compare with.",
                .aliases = {"accelerator", "device_type", "platform"}},
               into(&Job::device)},
              {{.name = "timeout",
                .type = real,
                .default_value = "60",
                .minimum = 0.1,
                .maximum = 1e6,
                .help = "Seconds after which a rank that does not answer, or an operation between ranks that does not "
                        "end, fails the job.",
                .aliases = {"dist_timeout", "distributed_timeout_minutes", "ddp_timeout", "timeout_s",
                            "timeout_seconds", "process_group_timeout"}},
               into(&Job::timeout)},
              {{.name = "time_limit",
                .type = real,
                .default_value = "0",
                .minimum = 0,
                .help =
                    "Seconds after which the run ends, counted from its start; 0: no limit. It saves a checkpoint in "
                    "time, for which it needs the section [checkpoint].",
                .aliases = {"max_time", "max_wall_time", "walltime", "wall_time", "time_limit_s", "exit_duration"}},
               into(&Job::time_limit)},
              {{.name = "restarts",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .maximum = 1e6,
                .help =
                    "How often in a row all ranks are started again after one has died, failed or stopped "
                    "answering, without a newer checkpoint in between. The ranks go on from the newest checkpoint, "
                    "for which this needs the section [checkpoint]. Failures that would repeat end the job at once: "
                    "a loss that is not finite, damaged data. If another launcher has started the ranks, only "
                    "that launcher can start them again.",
                .aliases = {"max_restarts", "max_retries", "num_restarts"}},
               into(&Job::restarts)},
              {{.name = "deterministic",
                .type = boolean,
                .default_value = "false",
                .help = "Whether sums over ranks are added one after the other, in the order of the ranks. A job then "
                        "has the same bits over every transport. For a transport that adds in another order, sums are "
                        "made of sends and receives, which takes more memory and may take longer. Without this, a job "
                        "has the same bits in each run over one transport.",
                .aliases = {"deterministic_mode", "use_deterministic_algorithms", "reproducible"}},
               into(&Job::deterministic)},
              {.spec =
                   {.name = "check",
                    .type = text_list,
                    .choices = {"states", "transfers", "replay", "replicas", "none"},
                    .help =
                        "What is watched for wrong bits, which fail the job. states: parameters, moments, states of "
                        "hooks and fields are hashed where they are written and verified where they are next "
                        "overwritten, evaluated or saved; by default only where the cpu trains. transfers: every "
                        "message of an operation between several ranks carries a hash, which its receiver compares. "
                        "replay: as often as check_every says, a microbatch is "
                        "computed twice, on other threads. replicas: as often, what several ranks hold copies of is "
                        "compared. none stands alone.",
                    .optional = true,
                    .aliases = {"checks", "integrity", "sdc_checks", "verify_states"}},
               .store = store_checks,
               .default_note = "states, replicas"},
              {{.name = "check_every",
                .type = integer,
                .default_value = "0",
                .minimum = -1,
                .help = "Steps between two checks replay and replicas (key check). Replicas are what several ranks "
                        "hold copies of (parameters, "
                        "moments, loss, states of hooks, fields). Copies that differ in a bit fail the job. 0 checks "
                        "only at each evaluation and, replicas, before each save, N > 0 also every N steps, -1 never. "
                        "Refused where check has neither of the two, and -1 where check names one.",
                .aliases = {"check_replicas_every", "param_hash_check_interval", "consistency_check_interval"}},
               into(&Job::check_every)},
              {{.name = "seed",
                .type = seed,
                .default_value = "1337",
                .help = "The seed of every random number of the job.",
                .aliases = {"random_seed", "manual_seed", "rng_seed", "seed_everything"}},
               into(&Job::seed)},
              {{.name = "threads",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "Threads of each rank; 0 divides this machine's cores among its ranks.",
                .aliases = {"num_threads", "n_threads", "nthreads", "omp_num_threads", "threads_per_rank",
                            "cpus_per_task", "intra_op_threads"}},
               into(&Job::threads)},
              {.spec = {.name = "output",
                        .type = path,
                        .help = "The folder that the run writes to. A relative path starts in the working directory, "
                                "even in the job file. {time} stands for the start of the run (UTC, 20261122-141503), "
                                "the same on all ranks.",
                        .optional = true,
                        .aliases = {"out_dir", "output_dir", "outdir", "save_dir", "save", "run_dir", "log_dir",
                                    "logging_dir", "default_root_dir", "results", "workdir", "checkpoint_dir"}},
               .store = into(&Job::output),
               .default_note = "runs/<name of the job file>",
               .from_working_folder = true},
              {{.name = "task",
                .type = choice,
                .default_value = "train",
                .choices = {"train", "iterate", "infer"},
                .help = "Train the model or engine, iterate its step function, or apply it to arrays.",
                .aliases = {"mode", "action"},
                .choice_aliases = {{"training", "train"},
                                   {"fit", "train"},
                                   {"pretrain", "train"},
                                   {"simulate", "iterate"},
                                   {"simulation", "iterate"},
                                   {"solve", "iterate"},
                                   {"predict", "infer"},
                                   {"inference", "infer"}}},
               into(&Job::task)},
              {{.name = "trace",
                .type = choice,
                .default_value = "none",
                .choices = {"none", "steps"},
                .help = "Whether every rank records when it computed, moved data and waited in some steps. The result "
                        "is trace.json, for ui.perfetto.dev or chrome://tracing.",
                .aliases = {"profile", "profiler", "use_profiler", "tracing"},
                .choice_aliases = {{"true", "steps"},
                                   {"on", "steps"},
                                   {"yes", "steps"},
                                   {"1", "steps"},
                                   {"step", "steps"},
                                   {"false", "none"},
                                   {"off", "none"},
                                   {"no", "none"},
                                   {"0", "none"}}},
               into(&Job::trace)},
              {{.name = "trace_first",
                .type = integer,
                .default_value = "3",
                .minimum = 1,
                .help = "The first traced step, counted from 1. A run that is too short traces its last steps. With "
                        "task = infer "
                        "records are counted.",
                .aliases = {"profile_step_start", "trace_start"}},
               into(&Job::trace_first)},
              {{.name = "trace_steps",
                .type = integer,
                .default_value = "3",
                .minimum = 1,
                .maximum = 1000,
                .help = "Number of traced steps.",
                .aliases = {"num_trace_steps", "profile_steps"}},
               into(&Job::trace_steps)},
          },
      .aliases = {"run", "general", "main", "common", "global", "distributed", "launch", "experiment"},
  };
}

}  // namespace shardrun::job
