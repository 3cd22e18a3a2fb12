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

/// A line of [sharding]. The strategy that reads it knows what it means.
struct Sharding {
  std::string key;
  std::string value;
};

/// The name that leaves the choice of a transport to the host.
inline constexpr const char* automatic = "auto";

/// A model, engine, strategy or transport, with the options that it declared.
struct Chosen {
  std::string name;
  OptionValues options;
};

struct DataSettings {
  std::filesystem::path text;  ///< at most one of these three is not empty
  std::filesystem::path tokens;
  std::vector<std::filesystem::path> arrays;
  std::filesystem::path validation_text;  ///< of the same kind as the training data; if empty, a part of that is used
  std::filesystem::path validation_tokens;
  std::vector<std::filesystem::path> validation_arrays;
  std::filesystem::path tokenizer;  ///< "char", "byte", or an absolute path
  TokenType token_type{};           ///< of token files
  double split{};                   ///< fraction that is trained on, in (0, 1]
  std::int64_t batch{};             ///< sequences or samples per optimizer step, over all ranks
  std::int64_t microbatches{};
  std::int64_t eval_batch{};  ///< 0: as one microbatch
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
  double clip{};  ///< largest norm of the gradient; 0: not clipped
  Remat remat{};  ///< what backward computes again
  Precision precision{};
  RealType gradients{};       ///< their element type, with mixed precision
  RealType moments{};         ///< element type of the optimizer's means
  Loss loss{};                ///< of an engine
  std::int64_t eval_every{};  ///< steps; 0: only at the end
  OnNan on_nan{};             ///< what a validation loss that is not finite does
  std::int64_t sample{};      ///< tokens to sample at the end
  std::int64_t log_every{};   ///< steps; 0: as suits the terminal
};

struct IterateSettings {
  std::int64_t steps{};
  std::filesystem::path from;         ///< a saved state, or the folder of a run; empty: the model's first state
  std::int64_t save_every{};          ///< steps; 0: only at the end
  std::vector<std::string> pictures;  ///< fields and outputs that are drawn when they are saved
};

/// What a run watches for bits that are wrong: [job] check.
struct Checks {
  bool states = false;     ///< bits of states that change between two steps
  bool transfers = false;  ///< bits that change between ranks
  bool replay = false;     ///< a microbatch that has other bits when it is computed again
  bool replicas = false;   ///< copies of states that differ
};

/// How the run saves what it needs to go on after it ended.
struct CheckpointSettings {
  bool used = false;     ///< whether the section is there
  std::int64_t every{};  ///< steps; 0: none
  double minutes{};      ///< 0: none
  std::int64_t keep{};   ///< the newest; 0: all
  std::int64_t keep_every{};
  std::filesystem::path folder;  ///< empty: `checkpoints` in the output folder
  bool async{};                  ///< whether steps go on while a checkpoint is written
  std::string resume;            ///< never, auto, or an absolute path
  SaveFailure on_failure{};
  bool force_data = false;  ///< of the command line: go on with other data
};

/// A file name of "-" is standard input or output.
struct InferSettings {
  std::filesystem::path from;
  std::filesystem::path to;
  std::int64_t batch{};     ///< samples that a model is applied to at once, over all ranks
  Malformed malformed{};    ///< what a malformed record does
  std::int64_t features{};  ///< values in a sample; 0: as the checkpoint says
  std::int64_t outputs{};   ///< values in a prediction; 0: as the checkpoint says
};

/// The link of one mesh axis.
struct ClusterAxis {
  std::string axis;
  double bandwidth{};  ///< bytes a second; 0: as of the other axes
  double latency{};    ///< seconds a message
};

/// The machine that 'shardrun plan' assumes for ranks. Rates that are not given are 0.
struct ClusterSettings {
  std::int64_t memory{};             ///< bytes, of a rank
  double flops{};                    ///< a second, of a rank
  double memory_bandwidth{};         ///< bytes a second
  double bandwidth{};                ///< bytes that a rank sends a second, over axes that `axes` does not name
  double latency{};                  ///< seconds a message
  std::int64_t ranks_per_machine{};  ///< 0: all ranks
  std::filesystem::path measured;
  std::vector<ClusterAxis> axes;
};

struct PluginSettings {
  std::vector<std::filesystem::path> path;
};

/// A setting that the file or an override gave, in canonical form.
struct GivenSetting {
  std::string section;
  std::string key;
  std::string value;
  std::string where;
};

/// A job that has been checked: every field has its value, given or by default, and the fields agree with
/// each other. All paths are absolute.
struct Job {
  std::string file;                          ///< as it was named, for messages
  std::string name;                          ///< the file's stem
  std::vector<std::filesystem::path> files;  ///< the job file, then those that it includes

  std::int64_t ranks{};
  std::optional<IntegerRange> elastic_ranks;  ///< the range of [job] ranks; `ranks` is the number that was chosen of it
  Chosen strategy;
  std::string transport;    ///< of mesh axes that `axis_transports` does not name
  std::string device;       ///< where the ranks compute
  double timeout{};         ///< seconds
  double time_limit{};      ///< seconds from the start of the run; 0: none
  std::int64_t restarts{};  ///< of the ranks, without a newer checkpoint in between; 0: a failure ends the job
  bool deterministic{};     ///< sums over ranks are added in the order of the ranks
  Checks checks;
  std::int64_t check_every{};  ///< steps between comparisons of replicas; 0: only at evaluations and saves; -1: never
  std::uint64_t seed{};
  std::int64_t threads{};        ///< per rank; 0: this machine's cores divided by ranks
  std::filesystem::path output;  ///< may contain {time}
  std::size_t output_given{};    ///< where in `output` the part from the job file begins
  Task task{};
  Trace trace{};
  std::int64_t trace_first{};  ///< the first step of the trace, counted from 1
  std::int64_t trace_steps{};

  std::vector<AxisTransport> axis_transports;
  /// Ranks from i · machine_ranks on, and as many, share a machine. A fact about a run, not a setting; 0: as [cluster].
  std::int64_t machine_ranks = 0;
  std::vector<Chosen> transports;  ///< those in use, each once; none with one rank

  /// [mesh] order: the rank at each place of the mesh. Empty: the place's number, or as `is_order_chosen` says.
  std::vector<std::int64_t> mesh_order;
  bool is_order_chosen = false;  ///< order = topology: by what ranks send along each axis
  std::vector<MeshAxis> mesh;    ///< empty when there is no [mesh]; otherwise the product is `ranks`
  std::vector<Sharding> sharding;
  PluginSettings plugins;
  Chosen engine;                     ///< in place of model and strategy; without a name: none
  std::filesystem::path weights;     ///< [model] from: those that a model begins with; empty: its own first values
  std::filesystem::path checkpoint;  ///< that the engine or an inferring model loads; empty: none
  Chosen model;
  DataSettings data;        ///< of tasks train and iterate
  TrainSettings train;      ///< of task train
  IterateSettings iterate;  ///< of task iterate
  InferSettings infer;      ///< of task infer
  CheckpointSettings checkpoints;
  ClusterSettings cluster;  ///< only for plan

  std::vector<GivenSetting> given;  ///< in the order of the schema; a section is an entry with no key

  /// Where a setting comes from, as the start of a message: "job.ini:12", "--set train.steps", or "job.ini (default)".
  /// An empty key stands for the section itself.
  [[nodiscard]] std::string where(std::string_view section, std::string_view key) const;

  [[nodiscard]] bool is_given(std::string_view section, std::string_view key) const;
};

/// Whether [data] names data.
[[nodiscard]] inline bool has_data(const Job& job) noexcept {
  return !job.data.text.empty() || !job.data.tokens.empty() || !job.data.arrays.empty();
}

/// Steps of the job's task; 0 for infer, whose records are not counted before.
[[nodiscard]] inline std::int64_t steps_of(const Job& job) noexcept {
  return job.task == Task::train ? job.train.steps : job.iterate.steps;
}

/// Whether the job applies a model to arrays.
[[nodiscard]] inline bool applies_model(const Job& job) noexcept {
  return job.task == Task::infer && job.engine.name.empty();
}

/// Whether a path of [infer] is standard input or output.
[[nodiscard]] inline bool is_standard(const std::filesystem::path& path) { return path.filename() == "-"; }

/// What parsing a job needs from models and plugins. Absent options mean that there is no such model or plugin. The
/// names are used only in messages that list them.
struct SchemaProviders {
  /// Of the Job, only `plugins.path` is there.
  std::function<std::optional<std::vector<OptionSpec>>(std::string_view model, const Job& job)> model_options;
  std::function<std::vector<std::string>(const Job& job)> model_names;
  /// The settings of [model], its name among them, that make the model of these weights. Throws Error.
  std::function<std::vector<RawSetting>(const std::filesystem::path& weights, const Job& job)> model_of_weights;

  /// Called last. The Job is complete except for the plugins' options; `plugins.path` is there.
  std::function<std::optional<std::vector<OptionSpec>>(std::string_view strategy, const Job& job)> strategy_options;
  std::function<std::vector<std::string>(const Job& job)> strategy_names;

  std::function<std::optional<std::vector<OptionSpec>>(std::string_view transport, const Job& job)> transport_options;
  std::function<std::vector<std::string>(const Job& job)> transport_names;

  std::function<std::optional<std::vector<OptionSpec>>(std::string_view engine, const Job& job)> engine_options;
  std::function<std::vector<std::string>(const Job& job)> engine_names;

  /// The transports that `transport = auto` chooses from.
  std::function<std::vector<std::string>(const Job& job)> automatic_transports;

  /// The value of `[job] ranks = auto` without [mesh].
  std::function<std::int64_t(const Job& job)> automatic_ranks;
};

/// Throws Error{job} with the place at the start of its message; Error{plugin} for options that are declared wrongly;
/// and what the providers throw.
[[nodiscard]] Job parse_job(const RawJob& raw, const SchemaProviders& providers);

/// `[plugins] path` alone, for commands without a job.
[[nodiscard]] std::vector<std::filesystem::path> plugin_path(const RawJob& raw);

/// A job file with this one's settings and overrides, absolute paths and its output folder. Parsed from any folder, it
/// gives the same job.
[[nodiscard]] std::string canonical_text(const Job& job);

}  // namespace shardrun::job
