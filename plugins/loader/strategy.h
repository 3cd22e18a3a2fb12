#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/options/options.h"
#include "core/plan/plan.h"
#include "plugins/loader/plugin.h"

namespace shardrun::plugins {

/// A request to a strategy: shardrun/strategy.h as plain values. The header states the meaning of every field.
struct LogicalAxis {
  std::string name;
  std::int64_t size = 0;
};

enum class TensorKind { parameter, state };

struct TensorSummary {
  std::string name;
  TensorKind kind = TensorKind::parameter;
  std::vector<std::int64_t> shape;
  std::vector<std::string> axes;  ///< one per dimension; "" where it has none
  std::uint64_t bytes = 0;
  std::int32_t layer = -1;
  std::uint32_t tied_set = 0;
};

struct CutPointSummary {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::string> axes;
  std::uint64_t bytes = 0;
  std::int32_t layer = -1;
};

struct LayerSummary {
  std::string name;
  std::uint64_t parameter_bytes = 0;
  std::uint64_t forward_flops = 0;  ///< this and the next two: over the whole batch of one optimizer step
  std::uint64_t backward_input_flops = 0;
  std::uint64_t backward_weight_flops = 0;
};

/// A line of the job file's section [sharding].
struct ShardingLine {
  std::string key;
  std::string value;
  std::string where;
};

struct StrategyRequest {
  std::uint32_t ranks = 1;
  std::uint32_t microbatches = 1;
  std::vector<plan::MeshAxis> mesh;  ///< as the job file gives it; empty where it does not
  OptionValues options;              ///< a declared option that is missing gets its default
  std::vector<TensorSummary> tensors;
  std::vector<LogicalAxis> axes;
  std::vector<CutPointSummary> cut_points;
  std::vector<LayerSummary> layers;
  LayerSummary before;  ///< what comes before the first layer
  LayerSummary behind;  ///< what comes behind the last
  std::vector<ShardingLine> sharding{};
};

/// Whether a strategy uses the job's section [sharding].
[[nodiscard]] bool reads_sharding(const Plugin& strategy);

class Hooks;

/// An opened strategy. Copyable. One thread at a time uses it.
class Strategy {
 public:
  /// Finds, loads and opens the strategy `name`. Throws Error{plugin}.
  [[nodiscard]] static Strategy open(const Directories& directories, std::string_view name, LogSink log = {});

  [[nodiscard]] const Manifest& manifest() const noexcept { return plugin_.manifest(); }
  [[nodiscard]] const std::vector<OptionSpec>& options() const noexcept { return plugin_.options(); }

  [[nodiscard]] bool reads_sharding() const { return plugins::reads_sharding(plugin_); }

  /// Throws Error{job} where the strategy cannot split this job, Error{plugin} where it fails or writes an invalid
  /// plan. Both name the plugin and the item.
  [[nodiscard]] plan::Plan make_plan(const StrategyRequest& request) const;

  /// The hooks of the plan that it wrote for this request. They keep the strategy open. Null for a plan without hooks.
  [[nodiscard]] std::shared_ptr<const Hooks> hooks(const StrategyRequest& request, const plan::Plan& plan) const;

 private:
  explicit Strategy(Plugin plugin) : plugin_(std::move(plugin)) {}

  Plugin plugin_;
};

}  // namespace shardrun::plugins
