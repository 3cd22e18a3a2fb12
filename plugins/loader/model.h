#pragma once

#include <shardrun/sdk/model/function.hpp>
#include <shardrun/sdk/model/hub.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/graph/builder.h"
#include "core/options/options.h"
#include "plugins/loader/model_op.h"
#include "plugins/loader/plugin.h"

namespace shardrun::plugins {

/// A request to a model: sr_model_job of shardrun/model.h as plain values.
struct ModelRequest {
  OptionValues options;    ///< a declared option that is missing here gets its default
  std::uint32_t data = 0;  ///< SR_DATA_...
  std::int64_t vocab = 0;  ///< this and the next two: 0 if the data does not say
  std::int64_t features = 0;
  std::int64_t outputs = 0;
  sdk::CacheSizes caches = {};  ///< for the function `decode`
};

/// An opened model. Copyable. Only one thread at a time may use it.
class Model {
 public:
  /// Finds, loads and opens the model `name`, and registers its ops. Throws Error{plugin}.
  [[nodiscard]] static Model open(const Directories& directories, std::string_view name, LogSink log = {});

  [[nodiscard]] const Manifest& manifest() const noexcept { return plugin_.manifest(); }
  [[nodiscard]] const std::vector<OptionSpec>& options() const noexcept { return plugin_.options(); }
  [[nodiscard]] const std::string& help() const noexcept { return help_; }
  /// SR_DATA_... bits: the kinds of data that the functions `loss` and `iterate` can take.
  [[nodiscard]] std::uint32_t data() const noexcept { return data_; }
  /// Whether the model has the function. The function's role is the one that shardrun/model.h gives for its name.
  [[nodiscard]] bool has(std::string_view function) const noexcept;
  /// The ops that the model brings. They stay registered as long as the process runs.
  [[nodiscard]] const std::vector<std::shared_ptr<const ModelOp>>& ops() const noexcept { return ops_; }

  /// The model's names under `architectures` in Hugging Face's config.json. Empty: it cannot be read from such a
  /// folder, nor written to one.
  [[nodiscard]] const std::vector<std::string>& architectures() const noexcept { return architectures_; }
  /// The options that make this model the one that a config.json describes. Throws Invalid, which says what is not
  /// possible, also for keys that the model does not know. REQUIRES, like the next two: architectures() is not empty.
  [[nodiscard]] OptionValues read_config(const std::vector<sdk::ConfigValue>& config) const;
  [[nodiscard]] std::vector<sdk::ConfigValue> write_config(const ModelRequest& request) const;
  /// The names that Hugging Face's libraries give to the parameters of `graph`, which declare() made from this request.
  [[nodiscard]] std::vector<sdk::TensorName> tensor_names(const graph::Graph& graph, const ModelRequest& request) const;

  // The following throw Invalid (call.h) if the job has to change, Error{job} if a tensor is too large, and
  // Error{plugin} if the model fails or breaks a rule. Both kinds of Error name the plugin and what is wrong: a state,
  // op or function.

  /// Adds the model's states to the graph.
  void declare(graph::Graph& graph, const ModelRequest& request) const;
  /// Writes a function. Returns the losses of `loss`, and no values for other functions. `length`: the tokens that a
  /// call of `decode` adds to a sequence. REQUIRES: has(function).
  graph::Losses write_function(graph::FunctionBuilder& builder, const ModelRequest& request, std::string_view function,
                               std::int64_t rows, bool training, std::int64_t length = 0) const;

 private:
  explicit Model(Plugin plugin);

  Plugin plugin_;
  std::string help_;
  std::uint32_t data_ = 0;
  std::vector<std::string> functions_;  ///< names, in the order of their indices
  std::vector<std::shared_ptr<const ModelOp>> ops_;
  std::vector<std::string> architectures_;
};

/// The ops that a model declares, without registering them. Throws as Model::open does.
[[nodiscard]] std::vector<std::shared_ptr<const ModelOp>> declared_ops(const Plugin& model);

}  // namespace shardrun::plugins
