#include "core/job/schema.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/job/schema_sections.h"

namespace shardrun::job {
namespace {

using enum OptionType;

Section mesh_section() {
  return {
      .name = "mesh",
      .help =
          "The ranks as a grid: axis = size, in order from the slowest to the fastest changing. Axis names consist of "
          "a-z, 0-9 and _, and begin with a letter. Sizes are at least 1; their product is [job] ranks. A strategy "
          "with one axis needs no [mesh]. order = 0, 2, 1, 3 says which rank is at each place of the grid, of which "
          "the last axis of the strategy changes fastest; order = topology takes the order of the axes with which "
          "machines "
          "exchange least.",
      .kind = SectionKind::mesh,
      .aliases = {"parallel", "parallelism", "parallel_dims", "device_mesh", "grid", "topology"},
      .key_aliases = {"tensor_model_parallel_size", "tensor_parallel_size", "tensor_parallel_degree",
                      "model_parallel_size", "pipeline_model_parallel_size", "pipeline_parallel_size",
                      "pipeline_parallel_degree", "data_parallel_size", "data_parallel_degree",
                      "data_parallel_shard_degree", "data_parallel_replicate_degree", "mesh_shape", "device_mesh"},
      .key_note = "the size of an axis",
  };
}

Section transport_section() {
  return {
      .name = "transport",
      .help =
          "Transports of single mesh axes: axis = transport. Options of a transport stand in a section of its own, "
          "[transport.NAME]; 'shardrun plugins' lists them.",
      .kind = SectionKind::transport,
      .aliases = {"backend", "communication", "comm", "network"},
  };
}

Section plugins_section() {
  return {
      .name = "plugins",
      .help = "Folders to search for plugins before the usual ones.",
      .settings =
          {{{.name = "path", .type = path_list, .help = "Folders with plugins.", .optional = true, .separator = ':'},
            into(&Job::plugins, &PluginSettings::path)}},
  };
}

Section model_section() {
  return {
      .name = "model",
      .help =
          "What is computed. The other keys are the options of the named model. With [job] engine: the model that "
          "'shardrun verify' compares the engine with; then the section may be left out, and a run does not use it.",
      .settings =
          {{{.name = "name",
             .type = text,
             .help = "The model.",
             .aliases = {"type", "model", "model_type", "model_name", "arch", "architecture", "kind"}},
            into(&Job::model, &Chosen::name)},
           {{.name = "from",
             .type = path,
             .help = "Weights to begin with: a folder that Hugging Face's libraries wrote (config.json and "
                     "safetensors), a GGUF file, the folder of a run, its weights.safetensors, or the folder of a "
                     "checkpoint. The model's name and its options follow from it, and the tokenizer of a text; what "
                     "the job says replaces them.",
             .optional = true,
             .aliases = {"weights", "pretrained", "init_from", "pretrained_model_name_or_path", "model_path"}},
            into(&Job::weights)}},
      .kind = SectionKind::model,
      .aliases = {"architecture", "arch", "net", "transformer", "model_args", "config"},
  };
}

Section iterate_section() {
  return {
      .name = "iterate",
      .help = "How many steps the model or engine is iterated, from which state, and what is saved.",
      .settings =
          {
              {{.name = "steps",
                .type = integer,
                .minimum = 0,
                .help = "Number of times that the step function is applied.",
                .aliases = {"iterations", "iters", "num_steps", "n_steps", "max_steps", "max_iters", "num_iterations",
                            "timesteps", "nt", "niter"}},
               into(&Job::iterate, &IterateSettings::steps)},
              {{.name = "from",
                .type = path,
                .help =
                    "The state to start from, instead of the model's own: a file state.safetensors or "
                    "state-000100.safetensors of a run, or a run's folder; that run may have been split in another "
                    "way, and steps are counted on from the state's own. Or NumPy arrays of any type: a folder with "
                    "NAME.npy for each field, or of a model with one field a .npy file.",
                .optional = true,
                .aliases = {"restart", "restart_from", "initial_state", "init_state", "state"}},
               into(&Job::iterate, &IterateSettings::from)},
              {{.name = "save_every",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "Steps between saved states, each in a file of its own, such as state-000100.safetensors; 0: "
                        "only the last.",
                .aliases = {"output_every", "write_every", "dump_every"}},
               into(&Job::iterate, &IterateSettings::save_every)},
              {{.name = "pictures",
                .type = text_list,
                .help = "Fields and outputs of one or two dimensions that are drawn whenever they are saved, in the "
                        "folder pictures of the run: NAME-000100.png, at the end NAME.png, and of several steps an "
                        "animation, NAME.gif.",
                .optional = true,
                .aliases = {"plot", "plots", "images", "figures", "animate", "visualize", "snapshots"}},
               into(&Job::iterate, &IterateSettings::pictures)},
          },
      .tasks = {"iterate"},
      .aliases = {"simulation", "simulate", "solver", "iteration"},
  };
}

Section metrics_section() {
  return {
      .name = "metrics",
      .help = "Other formats in which a run writes or serves the numbers of metrics.jsonl.",
      .settings =
          {
              {{.name = "tensorboard",
                .type = boolean,
                .default_value = "false",
                .help = "Write files of events for TensorBoard, in the folder tensorboard of the run.",
                .aliases = {"tb", "tensorboard_dir", "tensorboard_log_dir", "enable_tensorboard", "use_tensorboard",
                            "report_to"}},
               into(&Job::metrics, &MetricsSettings::tensorboard)},
              {{.name = "csv",
                .type = boolean,
                .default_value = "false",
                .help = "Write metrics.csv: the lines of metrics.jsonl as a table."},
               into(&Job::metrics, &MetricsSettings::csv)},
              {{.name = "prometheus",
                .type = text,
                .help = "Serve the latest numbers to Prometheus, over HTTP at the path /metrics, while the job runs. "
                        "ADDRESS:PORT, [ADDRESS]:PORT, or PORT alone, at 127.0.0.1; port 0 takes a free one, which a "
                        "line tells. Whoever reaches the address can read the numbers.",
                .optional = true,
                .aliases = {"prometheus_port", "metrics_port", "prometheus_address"}},
               into(&Job::metrics, &MetricsSettings::prometheus)},
          },
      .tasks = {"train", "iterate"},
      .aliases = {"logging", "log", "logger", "monitoring", "tracking"},
  };
}

Section infer_section() {
  return {
      .name = "infer",
      .help =
          "What a model or engine is applied to. A stream of records is one .npy array after the other, as numpy.save "
          "writes them to one open file. A record is one sample, or several [samples, ...]. A model's sample has any "
          "shape of as many values as it was trained on, or integers [context] for a model on tokens; an engine says "
          "what its samples are. Each record gets its predictions, in order. A model also takes a file of one array, "
          "of which each row is a sample. With `tokens`, a model of tokens continues prompts instead.",
      .settings =
          {
              {{.name = "from", .type = path, .help = "The file of the records; - is standard input."},
               into(&Job::infer, &InferSettings::from)},
              {{.name = "to",
                .type = path,
                .help = "The file of the predictions, which appears when all are in it; - is standard output, and "
                        "progress on standard error. A file that exists is refused: --replace replaces it."},
               into(&Job::infer, &InferSettings::to)},
              {{.name = "batch",
                .type = integer,
                .default_value = "32",
                .minimum = 1,
                .maximum = 1 << 30,
                .help = "Samples that a model is applied to at once, over all ranks. The last batch has the rest.",
                .aliases = {"batch_size", "bs", "eval_batch_size", "per_device_eval_batch_size"}},
               into(&Job::infer, &InferSettings::batch)},
              {{.name = "malformed",
                .type = choice,
                .default_value = "stop",
                .choices = {"stop", "skip"},
                .help = "What a malformed record of a stream does: fail the job, or have no predictions. Its number is "
                        "told."},
               into(&Job::infer, &InferSettings::malformed)},
              {{.name = "features",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "Values in a sample; 0: as in the job that trained the checkpoint."},
               into(&Job::infer, &InferSettings::features)},
              {{.name = "outputs",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "Values in a prediction, or classes; 0: as in the job that trained the checkpoint."},
               into(&Job::infer, &InferSettings::outputs)},
              {{.name = "tokens",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .maximum = 1 << 30,
                .help = "The most tokens that a model of tokens adds to each prompt. `from` is then a text of JSON "
                        "objects, one in a line, and `to` gets an object for each. 0: the model is applied to arrays.",
                .aliases = {"max_tokens", "max_new_tokens"}},
               into(&Job::infer, &InferSettings::tokens)},
              {{.name = "context",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "The most tokens of a prompt and its answer together; 0: as many as the model's context."},
               into(&Job::infer, &InferSettings::context)},
              {{.name = "slots",
                .type = integer,
                .default_value = "8",
                .minimum = 1,
                .maximum = 65536,
                .help = "Prompts that are continued at once; no more than a file of prompts has. auto: as many as "
                        "[cluster] memory has room for on each rank, but at most 32 for each stage of a pipeline.",
                .automatic = true,
                .aliases = {"max_num_seqs", "parallel"}},
               into(&Job::infer, &InferSettings::slots)},
              {{.name = "chunk",
                .type = integer,
                .default_value = "64",
                .minimum = 1,
                .maximum = 65536,
                .help = "Tokens of a prompt that are read at once."},
               into(&Job::infer, &InferSettings::chunk)},
              {{.name = "page",
                .type = integer,
                .default_value = "16",
                .minimum = 1,
                .maximum = 65536,
                .help = "Tokens on a page of the caches of keys and values."},
               into(&Job::infer, &InferSettings::page)},
              {{.name = "cache",
                .type = choice,
                .default_value = "float32",
                .choices = {"float32", "bfloat16"},
                .help = "The element type of the caches of keys and values."},
               into(&Job::infer, &InferSettings::cache)},
              {{.name = "weights",
                .type = choice,
                .default_value = "auto",
                .choices = weights_choices,
                .help = "The element type of the matrices of weights. auto: bfloat16 for a GGUF file that is "
                        "quantised, otherwise float32."},
               into(&Job::infer, &InferSettings::weights)},
              {{.name = "activations",
                .type = choice,
                .default_value = "float32",
                .choices = {"float32", "bfloat16"},
                .help = "The type to which products round what they multiply with bfloat16 weights. Sums and all "
                        "else stay float32. bfloat16 is faster where the processor has AVX512-BF16; it is refused "
                        "with other weights, where it has no effect."},
               into(&Job::infer, &InferSettings::activations)},
              {{.name = "invariant",
                .type = choice,
                .default_value = "batch",
                .choices = {"batch", "ranks"},
                .help = "On what the bits of an answer do not depend. batch: other prompts, slots and threads. ranks: "
                        "also strategy, mesh and transport; then no sum of a product is split over ranks, and each "
                        "rank computes some of a product's results instead, which all ranks gather. Needs "
                        "[job] device = cpu."},
               into(&Job::infer, &InferSettings::invariant)},
              {{.name = "prompt_logprobs",
                .type = boolean,
                .default_value = "false",
                .help =
                    "Let prompts ask for prompt_logprobs. Takes memory for the logits of a chunk. A prompt that asks "
                    "takes longer to read, others do not."},
               into(&Job::infer, &InferSettings::prompt_logprobs)},
              {{.name = "text",
                .type = boolean,
                .default_value = "false",
                .help = "Write the answers' texts alone, each followed by an end of line, while they are made."},
               into(&Job::infer, &InferSettings::writes_text)},
              {{.name = "timings",
                .type = boolean,
                .default_value = "false",
                .help = "Answers tell how long they took: the seconds from when the prompt was read, waiting for a "
                        "slot included, to the first token (first_token_s); and the tokens of the prompt by those "
                        "seconds (prefill_tokens_per_s), and of the answer by those after them "
                        "(decode_tokens_per_s)."},
               into(&Job::infer, &InferSettings::timings)},
              {{.name = "events",
                .type = boolean,
                .default_value = "false",
                .help = "Tell each piece of an answer as soon as it is there, in an object of its own; prompts have an "
                        "`id` and can be cancelled, and a malformed one does not end the job. For programs that "
                        "write prompts to a pipe and read answers from another."},
               into(&Job::infer, &InferSettings::events)},
              {{.name = "temperature",
                .type = real,
                .default_value = "0.8",
                .minimum = 0,
                .maximum = 1000,
                .help =
                    "Divides the logits from which tokens are drawn; 0: always the likeliest token. A prompt may set "
                    "this, and the next three, for itself."},
               into(&Job::infer, &InferSettings::temperature)},
              {{.name = "top_k",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "Draw only from the k likeliest tokens; 0: from all."},
               into(&Job::infer, &InferSettings::top_k)},
              {{.name = "top_p",
                .type = real,
                .default_value = "1",
                .minimum = 0,
                .maximum = 1,
                .help = "Draw only from the fewest likeliest tokens that together have this probability."},
               into(&Job::infer, &InferSettings::top_p)},
              {{.name = "min_p",
                .type = real,
                .default_value = "0",
                .minimum = 0,
                .maximum = 1,
                .help = "Draw only from tokens with at least this share of the highest probability."},
               into(&Job::infer, &InferSettings::min_p)},
          },
      .tasks = {"infer"},
  };
}

Section strategy_section() {
  return {
      .name = "strategy",
      .help = "The options of the strategy that [job] strategy names.",
      .kind = SectionKind::strategy,
  };
}

Section engine_section() {
  return {
      .name = "engine",
      .help = "The options of the engine that [job] engine names. 'shardrun plugins' lists engines with theirs.",
      .kind = SectionKind::engine,
  };
}

Section sharding_section() {
  return {
      .name = "sharding",
      .help =
          "What is split over which mesh axes, for strategies that read it from here ('shardrun plugins' says which "
          "do). A key is either the name of an axis of the model, as in batch = data, or a pattern for names of "
          "tensors and cut points, as in layer.*/mlp/up/weights = - | model; * matches any run of characters and ? one "
          "character. A value lists mesh axes from the slowest to the fastest changing, separated by commas; - is "
          "none. For a tensor it has every dimension, separated by |. A role may follow a tensor's name: @store (the "
          "default; where it is kept), @use (as it is computed with), @gradient or @optimizer, as in embedding/* "
          "@optimizer = data | -. A role that is not given is as the role before it. Of two lines about one thing the "
          "later counts. If two dimensions of a value are split over one mesh axis, it splits the first; for a tensor, "
          "give a line of its own in that case.",
      .kind = SectionKind::sharding,
  };
}

constexpr double most_rate = 1e24;

OptionSpec bandwidth_spec(std::string help) {
  return {.name = "bandwidth", .type = real, .minimum = 1, .maximum = most_rate, .help = std::move(help)};
}

OptionSpec optional_spec(OptionSpec spec) {
  spec.optional = true;
  return spec;
}

OptionSpec latency_spec(std::string help) {
  return {.name = "latency", .type = real, .minimum = 0, .maximum = 1e6, .help = std::move(help), .optional = true};
}

Section cluster_section() {
  return {
      .name = "cluster",
      .help =
          "The machine that the ranks run on, for 'shardrun plan'. With memory, plan says whether each rank fits; with "
          "the other keys it predicts the time of a step. In a run, only [infer] slots = auto reads it. A run compares "
          "memory with what this machine has and says if they differ. bandwidth and latency of single mesh axes stand "
          "in sections of their own, [cluster.AXIS].",
      .settings =
          {
              {{.name = "memory",
                .type = bytes,
                .minimum = 1,
                .help =
                    "Bytes of memory of each rank, for what 'shardrun plan' counts, such as 80G or 64GiB. On GPUs: of "
                    "a GPU, for the arenas of the ranks that use it; without it plan compares with the GPUs of this "
                    "machine.",
                .optional = true},
               into(&Job::cluster, &ClusterSettings::memory)},
              {{.name = "flops",
                .type = real,
                .minimum = 1,
                .maximum = most_rate,
                .help = "Floating-point operations that a rank achieves in a second.",
                .optional = true},
               into(&Job::cluster, &ClusterSettings::flops)},
              {{.name = "memory_bandwidth",
                .type = real,
                .minimum = 1,
                .maximum = most_rate,
                .help = "Bytes that a rank reads and writes in its memory in a second.",
                .optional = true},
               into(&Job::cluster, &ClusterSettings::memory_bandwidth)},
              {optional_spec(bandwidth_spec(
                   "Bytes that a rank sends in a second over a mesh axis. With flops, each axis of more than one rank "
                   "needs a bandwidth. With measured, an axis without one takes the measured times.")),
               into(&Job::cluster, &ClusterSettings::bandwidth)},
              {.spec = latency_spec("Seconds that each message over such an axis takes in addition to its bytes."),
               .store = into(&Job::cluster, &ClusterSettings::latency),
               .default_note = "0"},
              {{.name = "measured",
                .type = path,
                .help = "The output folder of a run of this job with [job] trace = steps, or its trace. Instructions "
                        "take the time that they took there.",
                .optional = true},
               into(&Job::cluster, &ClusterSettings::measured)},
              {{.name = "ranks_per_machine",
                .type = integer,
                .minimum = 1,
                .help = "How many ranks share a machine, from rank 0 on; by it plan chooses what transport = auto "
                        "stands for. A run goes by where its ranks are.",
                .optional = true,
                .aliases = {"gpus_per_node", "ranks_per_node", "nproc_per_node", "devices_per_host"}},
               into(&Job::cluster, &ClusterSettings::ranks_per_machine)},
          },
      .of_axis = {bandwidth_spec("Bytes that a rank sends in a second over this axis."),
                  latency_spec("Replaces the latency of [cluster].")},
  };
}

}  // namespace

const std::vector<Section>& schema() {
  static const std::vector<Section> sections = {
      job_section(),      mesh_section(),    plugins_section(),  model_section(),      data_section(),
      train_section(),    iterate_section(), infer_section(),    checkpoint_section(), metrics_section(),
      strategy_section(), engine_section(),  sharding_section(), transport_section(),  cluster_section()};
  return sections;
}

const Section& section_named(std::string_view name) {
  const auto found =
      std::find_if(schema().begin(), schema().end(), [&](const Section& section) { return section.name == name; });
  if (found == schema().end()) {
    throw Error(ErrorCode::internal, fmt::format("the job file's schema has no section [{}]", name));
  }
  return *found;
}

const Section* section_of_axis(std::string_view name) {
  const auto found = std::find_if(schema().begin(), schema().end(), [&](const Section& section) {
    return !section.of_axis.empty() && name.starts_with(section.name + ".");
  });
  return found == schema().end() ? nullptr : &*found;
}

const Setting* find_setting(const Section& section, std::string_view key) noexcept {
  const auto found = std::find_if(section.settings.begin(), section.settings.end(),
                                  [&](const Setting& setting) { return setting.spec.name == key; });
  return found == section.settings.end() ? nullptr : &*found;
}

const Rules& rules() {
  static const Rules all = {
      .of_models = {{"job", "strategy"},
                    {"mesh", ""},
                    {"data", "text"},
                    {"data", "tokens"},
                    {"train", "remat"},
                    {"train", "precision"},
                    {"train", "gradients"},
                    {"train", "sample"},
                    {"infer", "batch"},
                    {"infer", "tokens"},
                    {"iterate", "from"},
                    {"checkpoint", ""},
                    {"strategy", ""},
                    {"sharding", ""},
                    {"cluster", ""}},
      .order =
          {
              {{"train", "warmup"}, {"train", "steps"}},
              {{"train", "min_learning_rate"}, {"train", "learning_rate"}},
              {{"data", "microbatches"}, {"data", "batch"}},
          },
      .effect =
          {
              {{"job", "trace_first"}, {"job", "trace"}, "none"},
              {{"checkpoint", "keep_every"}, {"checkpoint", "keep"}, "0"},
              {{"job", "trace_steps"}, {"job", "trace"}, "none"},
              {{"job", "trace"}, {"job", "task"}, "infer", "none", true},
              {{"job", "check_every"}, {"job", "task"}, "infer"},
              {{"infer", "context"}, {"infer", "tokens"}, "0"},
              {{"infer", "slots"}, {"infer", "tokens"}, "0"},
              {{"infer", "chunk"}, {"infer", "tokens"}, "0"},
              {{"infer", "page"}, {"infer", "tokens"}, "0"},
              {{"infer", "cache"}, {"infer", "tokens"}, "0"},
              {{"infer", "weights"}, {"infer", "tokens"}, "0"},
              {{"infer", "activations"}, {"infer", "tokens"}, "0"},
              {{"infer", "invariant"}, {"infer", "tokens"}, "0"},
              {{"infer", "prompt_logprobs"}, {"infer", "tokens"}, "0"},
              {{"infer", "text"}, {"infer", "tokens"}, "0"},
              {{"infer", "timings"}, {"infer", "tokens"}, "0"},
              {{"infer", "timings"}, {"infer", "text"}, "true"},
              {{"infer", "events"}, {"infer", "tokens"}, "0"},
              {{"infer", "temperature"}, {"infer", "tokens"}, "0"},
              {{"infer", "top_k"}, {"infer", "tokens"}, "0"},
              {{"infer", "top_p"}, {"infer", "tokens"}, "0"},
              {{"infer", "min_p"}, {"infer", "tokens"}, "0"},
              {{"train", "loss"}, {"job", "engine"}, std::nullopt},
              {{"train", "momentum"}, {"train", "optimizer"}, "adamw"},
              {{"train", "gradients"}, {"train", "precision"}, "float32", "float32"},
              {{"train", "beta1"}, {"train", "optimizer"}, "sgd"},
              {{"train", "beta2"}, {"train", "optimizer"}, "sgd"},
              {{"train", "epsilon"}, {"train", "optimizer"}, "sgd"},
              {{"train", "min_learning_rate"}, {"train", "schedule"}, "constant"},
              {{"data", "microbatches"}, {"job", "task"}, "iterate"},
              {{"data", "split"}, {"job", "task"}, "iterate"},
              {{"data", "validation_text"}, {"job", "task"}, "iterate"},
              {{"data", "validation_tokens"}, {"job", "task"}, "iterate"},
              {{"data", "validation_arrays"}, {"job", "task"}, "iterate"},
              {{"data", "eval_batch"}, {"job", "task"}, "iterate"},
              {{"data", "eval_samples"}, {"job", "task"}, "iterate"},
              {{"data", "tokenizer"}, {"data", "text"}, std::nullopt},
              {{"data", "validation_text"}, {"data", "text"}, std::nullopt},
              {{"data", "validation_tokens"}, {"data", "tokens"}, std::nullopt},
              {{"data", "token_type"}, {"data", "tokens"}, std::nullopt},
              {{"data", "validation_arrays"}, {"data", "arrays"}, std::nullopt},
              {{"train", "sample"}, {"data", "text"}, std::nullopt},
              {{"data", "eval_batch"}, {"data", "split"}, "1"},
              {{"data", "eval_samples"}, {"data", "split"}, "1"},
              {{"train", "eval_every"}, {"data", "split"}, "1"},
              {{"train", "on_nan"}, {"data", "split"}, "1"},
              {{"cluster", "memory_bandwidth"}, {"cluster", "flops"}, std::nullopt},
          },
      .exclusive = {{"data", {"text", "tokens", "arrays"}},
                    {"data", {"split", "validation_text", "validation_tokens", "validation_arrays"}},
                    {"cluster", {"flops", "measured"}}},
      .content = {{"cluster", {"flops", "measured", "memory", "ranks_per_machine"}},
                  {"metrics", {"tensorboard", "csv", "prometheus"}}},
      .need = {{{"job", "time_limit"}, {{"checkpoint", ""}}},
               {{"job", "restarts"}, {{"checkpoint", ""}}},
               {{"cluster", "flops"}, {{"cluster", "memory_bandwidth"}}},
               {{"cluster", "bandwidth"}, {{"cluster", "flops"}, {"cluster", "measured"}}}},
  };
  return all;
}

std::string setting_name(std::string_view section, std::string_view key) {
  return key.empty() ? fmt::format("[{}]", section) : fmt::format("[{}] {}", section, key);
}

std::string to_string(const KeyName& name) { return setting_name(name.section, name.key); }

}  // namespace shardrun::job
