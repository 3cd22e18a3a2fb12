#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/raw.h"
#include "core/options/options.h"

namespace shardrun::job {

// The enumerators are in the order of the choices in the schema.
enum class Task { train, iterate, infer };
enum class Trace { none, steps };
enum class TokenType { uint16, uint32 };
enum class Optimizer { adamw, sgd };
enum class Schedule { cosine, linear, constant };
enum class Remat { none, layer, selective, gathers };
enum class Precision { float32, mixed };
enum class RealType { float32, bfloat16 };
enum class Weights { automatic, float32, bfloat16, float16, int8 };
enum class Invariant { batch, ranks };
enum class Malformed { stop, skip };
enum class SaveFailure { warn, stop };
enum class OnNan { stop, warn };
enum class Loss { automatic, mse, squared_error, cross_entropy };

struct MeshAxis {
  std::string name;
  std::int64_t size = 1;

  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

/// The transport of one mesh axis.
struct AxisTransport {
  std::string axis;
  std::string transport;
};

/// A line of [sharding]. Only the strategy that reads it knows its meaning.
struct Sharding {
  std::string key;
  std::string value;
};

/// The names of the values of Weights, in order.
inline const std::vector<std::string> weights_choices = {"auto", "float32", "bfloat16", "float16", "int8"};

/// The value by which a job leaves a choice to the host, such as that of a transport or of the type of weights.
inline constexpr const char* automatic = "auto";

/// A model, engine, strategy or transport, with values for the options that it declares.
struct Chosen {
  std::string name;
  OptionValues options;
};

struct DataSettings {
  std::filesystem::path text;  ///< at most one of these three is set
  std::filesystem::path tokens;
  std::vector<std::filesystem::path> arrays;
  std::filesystem::path validation_text;  ///< same kind as the training data; empty: a part of that is used
  std::filesystem::path validation_tokens;
  std::vector<std::filesystem::path> validation_arrays;
  std::filesystem::path tokenizer;  ///< "char", "byte", or an absolute path
  TokenType token_type{};           ///< for token files
  double split{};                   ///< the fraction used for training, in (0, 1]
  std::int64_t batch{};             ///< sequences or samples per optimizer step, on all ranks together
  std::int64_t microbatches{};
  std::int64_t eval_batch{};    ///< 0: like a microbatch
  std::int64_t eval_samples{};  ///< the most samples in an evaluation; 0: all
};

struct TrainSettings {
  std::int64_t steps{};
  Optimizer optimizer{};
  double learning_rate{};
  double min_learning_rate{};
  Schedule schedule{};
  std::int64_t warmup{};
  double weight_decay{};
  double beta1{};
  double beta2{};
  double epsilon{};
  double momentum{};
  double clip{};  ///< largest norm of the gradient; 0: no clipping
  Remat remat{};  ///< what backward recomputes
  Precision precision{};
  RealType gradients{};       ///< element type of gradients, with mixed precision
  RealType moments{};         ///< element type of the optimizer's moments
  Loss loss{};                ///< for an engine
  std::int64_t eval_every{};  ///< steps; 0: only at the end
  OnNan on_nan{};             ///< what happens if a validation loss is not finite
  std::int64_t sample{};      ///< tokens to sample at the end
  std::int64_t log_every{};   ///< in steps; 0: chosen for the terminal
};

struct IterateSettings {
  std::int64_t steps{};
  std::filesystem::path from;         ///< a saved state, or the folder of a run; empty: the model's own first state
  std::int64_t save_every{};          ///< steps; 0: only at the end
  std::vector<std::string> pictures;  ///< fields and outputs of which pictures are drawn when they are saved
};

/// The kinds of wrong bits that a run looks for: [job] check.
struct Checks {
  bool states = false;     ///< states that change between two steps
  bool transfers = false;  ///< data that changes between ranks
  bool replay = false;     ///< a microbatch that gives other bits when it is computed again
  bool replicas = false;   ///< copies of states that differ
};

/// How the run saves what it needs to continue after it has ended.
struct CheckpointSettings {
  bool used = false;     ///< the job has the section
  std::int64_t every{};  ///< in steps; 0: no saves by steps
  double minutes{};      ///< 0: no saves by time
  std::int64_t keep{};   ///< how many of the newest checkpoints are kept; 0: all
  std::int64_t keep_every{};
  std::filesystem::path folder;  ///< empty: `checkpoints` in the output folder
  bool async{};                  ///< steps continue while a checkpoint is written
  std::string resume;            ///< never, auto, or an absolute path
  SaveFailure on_failure{};
  bool force_data = false;  ///< from the command line: continue although the data differs
};

/// Other formats in which a run writes or serves the numbers of metrics.jsonl.
struct MetricsSettings {
  bool tensorboard = false;
  bool csv = false;
  std::string prometheus;  ///< an Endpoint; empty: none
};

/// The section [infer]. A file name of "-" stands for standard input or output.
struct InferSettings {
  std::filesystem::path from;
  std::filesystem::path to;
  std::int64_t batch{};     ///< samples to which a model is applied at once, on all ranks together
  Malformed malformed{};    ///< what happens if a record is malformed
  std::int64_t features{};  ///< values per sample; 0: as the checkpoint says
  std::int64_t outputs{};   ///< values per prediction; 0: as the checkpoint says
  // For a job that continues prompts; see generates().
  std::int64_t tokens{};   ///< the most tokens to add to a prompt; 0: the job applies a model to arrays
  std::int64_t context{};  ///< the most tokens of a prompt and its answer; 0: the model's context
  std::int64_t slots{};    ///< sequences at once; 0: as many as [cluster] memory has room for
  std::int64_t chunk{};    ///< tokens of a prompt that are read at once
  std::int64_t page{};     ///< tokens on a page of the caches
  RealType cache{};
  Weights weights{};
  RealType activations{};  ///< the type to which products with bfloat16 weights round their first operand
  Invariant invariant{};   ///< batch: an answer's bits do not depend on other prompts; ranks: nor on the ranks
  bool prompt_logprobs{};  ///< whether prompts can ask for the logarithms of the probabilities of their own tokens
  bool writes_text{};      ///< answers are written as they are, instead of as JSON objects
  bool timings{};          ///< answers tell how long they took
  bool events{};           ///< answers are written piece by piece, as events, while they are made
  double temperature{};
  std::int64_t top_k{};
  double top_p{};
  double min_p{};
};

/// The link of one mesh axis.
struct ClusterAxis {
  std::string axis;
  double bandwidth{};  ///< bytes per second; 0: as for the other axes
  double latency{};    ///< seconds per message
};

/// The machine that 'shardrun plan' assumes for ranks. Rates that are not set are 0.
struct ClusterSettings {
  std::int64_t memory{};             ///< bytes per rank
  double flops{};                    ///< per second and rank
  double memory_bandwidth{};         ///< bytes per second
  double bandwidth{};                ///< bytes that a rank sends per second, over axes that are not in `axes`
  double latency{};                  ///< seconds per message
  std::int64_t ranks_per_machine{};  ///< 0: all ranks on one machine
  std::filesystem::path measured;
  std::vector<ClusterAxis> axes;
};

struct PluginSettings {
  std::vector<std::filesystem::path> path;
};

/// A setting that the file or an override set, in canonical form.
struct GivenSetting {
  std::string section;
  std::string key;
  std::string value;
  std::string where;
};

/// A job that parse_job() has checked. Every field has a value, given or by default, and the fields are consistent.
/// Paths are absolute, except `file`, and `data.tokenizer` if it is "char" or "byte". While a job is parsed,
/// SchemaProviders get a Job in which only some fields are set.
struct Job {
  std::string file;                          ///< the path as given, for messages
  std::string name;                          ///< the file's stem
  std::vector<std::filesystem::path> files;  ///< the job file, then those that it includes

  std::int64_t ranks{};
  std::optional<IntegerRange> elastic_ranks;  ///< the range of [job] ranks; `ranks` is the number chosen from it
  Chosen strategy;
  std::string transport;    ///< for mesh axes that are not in `axis_transports`
  std::string device;       ///< the device on which the ranks compute
  double timeout{};         ///< seconds
  double time_limit{};      ///< seconds from the start of the run; 0: none
  std::int64_t restarts{};  ///< restarts of the ranks without a newer checkpoint in between; 0: a failure ends the job
  bool deterministic{};     ///< sums over ranks are made in the order of the ranks
  Checks checks;
  std::int64_t check_every{};  ///< steps between comparisons of replicas; 0: only at evaluations and saves; -1: none
  std::uint64_t seed{};
  std::int64_t threads{};        ///< per rank; 0: this machine's cores divided by ranks
  std::filesystem::path output;  ///< can contain {time}
  std::size_t output_given{};    ///< where in `output` the part from the job file begins
  Task task{};
  Trace trace{};
  std::int64_t trace_first{};  ///< the first step of the trace, counted from 1
  std::int64_t trace_steps{};

  std::vector<AxisTransport> axis_transports;
  /// The number of consecutive ranks that share a machine; 0: as in [cluster]. A fact about a run, not a setting.
  std::int64_t machine_ranks = 0;
  std::vector<Chosen> transports;  ///< those in use, each once; with one rank, only those that the job names

  /// [mesh] order: the rank at each place of the mesh. Empty: rank i is at place i, unless `is_order_chosen`.
  std::vector<std::int64_t> mesh_order;
  bool is_order_chosen = false;  ///< order = topology: the host chooses an order by what ranks send along each axis
  std::vector<MeshAxis> mesh;    ///< empty without [mesh]; otherwise the product of sizes is `ranks`
  std::vector<Sharding> sharding;
  PluginSettings plugins;
  Chosen engine;                     ///< runs the job in place of model and strategy; without a name: none
  std::filesystem::path weights;     ///< [model] from: the weights with which a model begins; empty: its own
  std::filesystem::path checkpoint;  ///< what the engine or an inferring model loads; empty: nothing
  Chosen model;
  DataSettings data;        ///< for tasks train and iterate
  TrainSettings train;      ///< for task train
  IterateSettings iterate;  ///< for task iterate
  InferSettings infer;      ///< for task infer
  CheckpointSettings checkpoints;
  MetricsSettings metrics;  ///< for tasks train and iterate
  ClusterSettings cluster;  ///< mainly for 'shardrun plan'

  std::vector<GivenSetting> given;  ///< in the order of the schema; an entry without a key stands for a section

  /// The place of a setting, as the start of a message: "job.ini:12", "--set train.steps", or "job.ini (default)". An
  /// empty key stands for the section itself.
  [[nodiscard]] std::string where(std::string_view section, std::string_view key) const;

  [[nodiscard]] bool is_given(std::string_view section, std::string_view key) const;
};

/// Whether [data] names data.
[[nodiscard]] inline bool has_data(const Job& job) noexcept {
  return !job.data.text.empty() || !job.data.tokens.empty() || !job.data.arrays.empty();
}

/// Steps of the job's task; 0 for infer, whose records are not counted beforehand.
[[nodiscard]] inline std::int64_t steps_of(const Job& job) noexcept {
  return job.task == Task::train ? job.train.steps : job.iterate.steps;
}

/// Whether the job applies a model, to arrays or prompts.
[[nodiscard]] inline bool applies_model(const Job& job) noexcept {
  return job.task == Task::infer && job.engine.name.empty();
}

/// Whether the job continues prompts with a model of tokens.
[[nodiscard]] inline bool generates(const Job& job) noexcept { return applies_model(job) && job.infer.tokens > 0; }

/// Whether a path of [infer] stands for standard input or output.
[[nodiscard]] inline bool is_standard(const std::filesystem::path& path) { return path.filename() == "-"; }

/// What parsing a job needs from models and plugins. If options are nothing, there is no such model or plugin. The
/// lists of names are used only in messages.
struct SchemaProviders {
  /// Of the Job, at least `plugins.path` is set.
  std::function<std::optional<std::vector<OptionSpec>>(std::string_view model, const Job& job)> model_options;
  std::function<std::vector<std::string>(const Job& job)> model_names;
  /// The settings of [model], including its name, of the model to which these weights belong. Throws Error.
  std::function<std::vector<RawSetting>(const std::filesystem::path& weights, const Job& job)> model_of_weights;

  /// The checkpoint from which the job goes on; empty: it begins anew. Of the Job, only [job] and [checkpoint] are set.
  /// Throws Error{job} if [checkpoint] resume names none.
  std::function<std::filesystem::path(const Job& job)> checkpoint_to_resume;

  /// Of the Job, at least `plugins.path` is set, when a message about a wrong key is made. Otherwise all is set except
  /// the options of strategy and transports.
  std::function<std::optional<std::vector<OptionSpec>>(std::string_view strategy, const Job& job)> strategy_options;
  std::function<std::vector<std::string>(const Job& job)> strategy_names;

  std::function<std::optional<std::vector<OptionSpec>>(std::string_view transport, const Job& job)> transport_options;
  std::function<std::vector<std::string>(const Job& job)> transport_names;

  std::function<std::optional<std::vector<OptionSpec>>(std::string_view engine, const Job& job)> engine_options;
  std::function<std::vector<std::string>(const Job& job)> engine_names;

  /// The transports from which `transport = auto` chooses.
  std::function<std::vector<std::string>(const Job& job)> automatic_transports;

  /// The value of `[job] ranks = auto` without [mesh].
  std::function<std::int64_t(const Job& job)> automatic_ranks;
};

/// Makes a Job of the settings and checks it. Throws Error{job} with the place of the setting, Error{plugin} for
/// options that are declared wrongly, and what the providers throw.
[[nodiscard]] Job parse_job(const RawJob& raw, const SchemaProviders& providers);

/// The folders of [plugins] path, for commands that need no other setting. Throws Error{job}.
[[nodiscard]] std::vector<std::filesystem::path> plugin_path(const RawJob& raw);

/// The text of a job file with this job's settings and overrides, absolute paths and its output folder. Parsed from any
/// folder, it gives the same job.
[[nodiscard]] std::string canonical_text(const Job& job);

}  // namespace shardrun::job
