#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/graph/builder.h"
#include "core/job/job.h"

namespace shardrun::models {

/// What the data determines about a model.
struct DataShape {
  std::int64_t vocab = 0;     ///< token streams and labels: number of distinct values; 0: unknown
  std::int64_t features = 0;  ///< arrays: values in a row of x
  std::int64_t outputs = 0;   ///< arrays: values in a row of a real-valued y
};

/// A model's options, and what the data determines.
struct ModelSettings {
  job::OptionValues options;
  DataShape data;
  const job::Job* job = nullptr;  ///< the job they belong to, for places in messages; null: none
};

/// An Error{job} whose message already has its place, if there is a job.
class Refusal : public Error {
 public:
  using Error::Error;
};

/// Throws Refusal: the place of the setting at fault, then `why`.
[[noreturn]] void refuse(const ModelSettings& settings, std::string_view section, std::string_view key,
                         std::string_view why);
/// Refuses a job without data whose option `key` does not give a size that the data would give.
[[noreturn]] void refuse_without_data(const ModelSettings& settings, std::string_view key);

/// A model builds functions over state, as if there were one giant device. It knows nothing of ranks and strategies.
struct Model {
  std::string name;
  std::string help;
  std::vector<job::OptionSpec> options;

  /// Adds parameters or fields to the graph. Throws Error{job} for options that contradict each other.
  void (*declare)(graph::Graph& graph, const ModelSettings& settings) = nullptr;

  /// Training: the loss of each token or sample, for `rows` samples, from inputs that it names. Random layers act only
  /// in training. Null for a model that cannot be trained.
  graph::ValueId (*losses)(graph::FunctionBuilder& builder, const ModelSettings& settings, std::int64_t rows,
                           bool training) = nullptr;
  /// Number of losses per sample.
  std::int64_t (*losses_per_sample)(const ModelSettings& settings) = nullptr;

  /// Token models: adds the output `logits` [1, vocab] at run-time scalar `position` of one sequence.
  void (*predict)(graph::FunctionBuilder& builder, const ModelSettings& settings) = nullptr;

  /// Simulation: writes the next state. Null for a model that cannot be iterated.
  void (*iterate)(graph::FunctionBuilder& builder, const ModelSettings& settings) = nullptr;
};

class RegisterModel {
 public:
  explicit RegisterModel(Model model);
};

/// Null if there is no such model.
[[nodiscard]] const Model* find_model(std::string_view name) noexcept;
[[nodiscard]] std::vector<std::string> model_names();

/// Declares a parameter. `decay` says whether weight decay applies to it.
graph::StateId parameter(graph::Graph& graph, std::string name, std::vector<std::int64_t> shape,
                         std::vector<std::string> axes, graph::Initializer initializer, bool decay,
                         std::int32_t layer = -1);

}  // namespace shardrun::models
