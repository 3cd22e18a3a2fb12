#pragma once

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
  OptionValues options;    ///< a declared option that is missing gets its default
  std::uint32_t data = 0;  ///< SR_DATA_...
  std::int64_t vocab = 0;  ///< this and the next two: 0 where the data does not say
  std::int64_t features = 0;
  std::int64_t outputs = 0;
};

/// An opened model. Copyable. One thread at a time uses it.
class Model {
 public:
  /// Finds, loads and opens the model `name`, and registers its ops. Throws Error{plugin}.
  [[nodiscard]] static Model open(const Directories& directories, std::string_view name, LogSink log = {});

  [[nodiscard]] const Manifest& manifest() const noexcept { return plugin_.manifest(); }
  [[nodiscard]] const std::vector<OptionSpec>& options() const noexcept { return plugin_.options(); }
  [[nodiscard]] const std::string& help() const noexcept { return help_; }
  /// SR_DATA_... bits: what it can be trained on.
  [[nodiscard]] std::uint32_t data() const noexcept { return data_; }
  /// Whether it has the function. Roles are as shardrun/model.h says for these names.
  [[nodiscard]] bool has(std::string_view function) const noexcept;
  /// Those that it brings. They are registered for as long as the process runs.
  [[nodiscard]] const std::vector<std::shared_ptr<const ModelOp>>& ops() const noexcept { return ops_; }

  /// The names of the model under `architectures` of a config.json. Empty: the model is not in folders of others.
  [[nodiscard]] const std::vector<std::string>& architectures() const noexcept { return architectures_; }
  /// The options that make the model of a config.json. Throws Invalid, with what cannot be; also for keys that the
  /// model does not know. REQUIRES, as the next two: architectures() has some.
  [[nodiscard]] OptionValues read_config(const std::vector<sdk::ConfigValue>& config) const;
  [[nodiscard]] std::vector<sdk::ConfigValue> write_config(const ModelRequest& request) const;
  /// The names that others give to the parameters of `graph`, which declare() made of the request.
  [[nodiscard]] std::vector<sdk::TensorName> tensor_names(const graph::Graph& graph, const ModelRequest& request) const;

  // Each throws Invalid (call.h) if the job has to change, Error{job} for a tensor that is too large, and Error{plugin}
  // if the model fails or breaks a rule. The latter two name the plugin and the item.

  /// Adds the model's states to the graph.
  void declare(graph::Graph& graph, const ModelRequest& request) const;
  /// Writes a function. Returns the losses of the function `loss`, no value for others. REQUIRES: has(function).
  graph::Losses write_function(graph::FunctionBuilder& builder, const ModelRequest& request, std::string_view function,
                               std::int64_t rows, bool training) const;

 private:
  explicit Model(Plugin plugin);

  Plugin plugin_;
  std::string help_;
  std::uint32_t data_ = 0;
  std::vector<std::string> functions_;  ///< by their indices
  std::vector<std::shared_ptr<const ModelOp>> ops_;
  std::vector<std::string> architectures_;
};

/// The ops that a model declares. It registers none. Throws as Model::open.
[[nodiscard]] std::vector<std::shared_ptr<const ModelOp>> declared_ops(const Plugin& model);

}  // namespace shardrun::plugins
