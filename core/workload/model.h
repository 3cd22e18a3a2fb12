#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <shardrun/sdk/model/function.hpp>
#include <shardrun/sdk/model/hub.hpp>

#include "core/base/error.h"
#include "core/graph/builder.h"
#include "core/job/job.h"

namespace shardrun::workload {

/// The sizes that a model gets from the data.
struct DataShape {
  std::int64_t vocab = 0;     ///< token streams and labels: number of distinct values; 0: unknown
  std::int64_t features = 0;  ///< arrays: values in a row of x
  std::int64_t outputs = 0;   ///< arrays: values in a row of a real-valued y
};

/// A model's options, and the sizes that it gets from the data.
struct ModelSettings {
  OptionValues options;
  DataShape data;
  sdk::CacheSizes caches = {};    ///< of the function `decode`
  const job::Job* job = nullptr;  ///< the job to which they belong, for places in messages; null: none
};

/// An Error{job}. If there is a job, the message has the place in its file.
class Refusal : public Error {
 public:
  using Error::Error;
};

/// Throws Refusal, whose message has the place of the setting at fault, then `why`.
[[noreturn]] void refuse(const ModelSettings& settings, std::string_view section, std::string_view key,
                         std::string_view why);

/// A model builds functions over states, as if there were one giant device. It knows nothing of ranks and strategies.
struct Model {
  std::string name;
  std::string help;
  std::vector<OptionSpec> options;
  bool takes_data = true;           ///< it can take data; then training needs some
  bool takes_tokens = false;        ///< the data can be tokens; then it has the option `context`
  bool takes_arrays = false;        ///< the data can be arrays
  bool takes_labels_alone = false;  ///< the data can only be arrays with labels

  /// Adds parameters or fields to the graph. Throws Error{job} for options that contradict each other.
  std::function<void(graph::Graph& graph, const ModelSettings& settings)> declare;

  /// For training: adds the inputs, under names of its choice, and the losses of `rows` samples, equally many for each
  /// sample. Random layers are active only if `training`. Empty for a model that cannot be trained.
  std::function<graph::Losses(graph::FunctionBuilder& builder, const ModelSettings& settings, std::int64_t rows,
                              bool training)>
      losses;

  /// For models of tokens: adds the output `logits` [1, vocab] for one sequence, at the run-time scalar `position`.
  std::function<void(graph::FunctionBuilder& builder, const ModelSettings& settings)> predict;

  /// For models of tokens: adds the output `logits` [rows, vocab] after `length` more tokens of each of `rows`
  /// sequences, whose keys and values are in caches. Inputs: `inputs` and `positions`, [rows, length], and `pages`.
  /// Empty for a model without caches.
  std::function<void(graph::FunctionBuilder& builder, const ModelSettings& settings, std::int64_t rows,
                     std::int64_t length)>
      decode = {};

  /// Adds the output `outputs` [batch, ...] for `rows` samples of the data's input `inputs`. Empty for a model that
  /// cannot be applied to arrays.
  std::function<void(graph::FunctionBuilder& builder, const ModelSettings& settings, std::int64_t rows)> forward;

  /// The names of the model under `architectures` in a config.json. Empty: Hugging Face's libraries have no such model,
  /// and the next three are empty.
  std::vector<std::string> architectures = {};
  /// The options with which this model is the one that a config.json describes. Throws Error{data}.
  std::function<OptionValues(const std::vector<sdk::ConfigValue>& config)> read_config = {};
  std::function<std::vector<sdk::ConfigValue>(const ModelSettings& settings)> write_config = {};
  /// The names that Hugging Face's libraries give to the parameters of `graph`, which declare() made.
  std::function<std::vector<sdk::TensorName>(const graph::Graph& graph, const ModelSettings& settings)> tensor_names =
      {};

  /// For simulation: writes the next state, from `rows` samples of data; 0: without data. Empty for a model that cannot
  /// be iterated.
  std::function<void(graph::FunctionBuilder& builder, const ModelSettings& settings, std::int64_t rows)> iterate;
};

/// The models that exist.
struct Models {
  std::function<std::vector<std::string>()> names;  ///< sorted
  /// Returns nothing if no model has that name. Throws Error{plugin} if it cannot be used.
  std::function<std::optional<Model>(const std::string& name)> find;
};

}  // namespace shardrun::workload
