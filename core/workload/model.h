#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <shardrun/sdk/model/hub.hpp>

#include "core/base/error.h"
#include "core/graph/builder.h"
#include "core/job/job.h"

namespace shardrun::workload {

/// The sizes that the data gives to a model.
struct DataShape {
  std::int64_t vocab = 0;     ///< token streams and labels: number of distinct values; 0: unknown
  std::int64_t features = 0;  ///< arrays: values in a row of x
  std::int64_t outputs = 0;   ///< arrays: values in a row of a real-valued y
};

/// A model's options, and the sizes from the data.
struct ModelSettings {
  OptionValues options;
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

/// A model builds functions over state, as if there were one giant device. It knows nothing of ranks and strategies.
struct Model {
  std::string name;
  std::string help;
  std::vector<OptionSpec> options;
  bool takes_data = true;           ///< whether it can take data; then training needs some
  bool takes_tokens = false;        ///< whether that can be tokens; it then has the option `context`
  bool takes_arrays = false;        ///< whether that can be arrays
  bool takes_labels_alone = false;  ///< whether that can only be arrays with labels

  /// Adds parameters or fields to the graph. Throws Error{job} for options that contradict each other.
  std::function<void(graph::Graph& graph, const ModelSettings& settings)> declare;

  /// Training: the losses of `rows` samples, the same number for each, from inputs that it names. Random layers act
  /// only in training. Empty for a model that cannot be trained.
  std::function<graph::Losses(graph::FunctionBuilder& builder, const ModelSettings& settings, std::int64_t rows,
                              bool training)>
      losses;

  /// Token models: adds the output `logits` [1, vocab] at run-time scalar `position` of one sequence.
  std::function<void(graph::FunctionBuilder& builder, const ModelSettings& settings)> predict;

  /// Adds the output `outputs` [batch, ...] of `rows` samples, from the data's input `inputs`. Empty for a model that
  /// cannot be applied to arrays.
  std::function<void(graph::FunctionBuilder& builder, const ModelSettings& settings, std::int64_t rows)> forward;

  /// The names of the model under `architectures` of a config.json. Empty: the model is not in folders of others, and
  /// the next three are empty.
  std::vector<std::string> architectures = {};
  /// The options that make the model of a config.json. Throws Error{data}.
  std::function<OptionValues(const std::vector<sdk::ConfigValue>& config)> read_config = {};
  std::function<std::vector<sdk::ConfigValue>(const ModelSettings& settings)> write_config = {};
  /// The names that others give to the parameters of `graph`, which declare() made.
  std::function<std::vector<sdk::TensorName>(const graph::Graph& graph, const ModelSettings& settings)> tensor_names =
      {};

  /// Simulation: writes the next state, of `rows` samples of data; 0: without data. Empty for a model that cannot be
  /// iterated.
  std::function<void(graph::FunctionBuilder& builder, const ModelSettings& settings, std::int64_t rows)> iterate;
};

/// The models that there are.
struct Models {
  std::function<std::vector<std::string>()> names;  ///< sorted
  /// Nothing if there is none of that name. Throws Error{plugin} if it cannot be used.
  std::function<std::optional<Model>(const std::string& name)> find;
};

}  // namespace shardrun::workload
