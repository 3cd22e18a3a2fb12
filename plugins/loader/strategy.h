#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugins/loader/options.h"
#include "plugins/loader/plugin.h"

namespace shardrun::plugins {

/// A request to a strategy: shardrun/strategy.h as plain values. The header states the meaning of every field.
struct MeshAxis {
  std::string name;
  std::uint32_t size = 1;

  bool operator==(const MeshAxis&) const = default;
};

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
  std::vector<MeshAxis> mesh;  ///< as the job file gives it; empty where it does not
  OptionValues options;        ///< a declared option that is missing gets its default
  std::vector<TensorSummary> tensors;
  std::vector<LogicalAxis> axes;
  std::vector<CutPointSummary> cut_points;
  std::vector<LayerSummary> layers;
  LayerSummary before;  ///< what comes before the first layer
  LayerSummary behind;  ///< what comes behind the last
  std::vector<ShardingLine> sharding{};
};

/// For each dimension, the mesh axes that split it, major to minor; none: it stays whole.
using DimSplits = std::vector<std::vector<std::string>>;

struct AxisPlacement {
  std::string axis;
  std::vector<std::string> mesh_axes;

  bool operator==(const AxisPlacement&) const = default;
};

enum class TensorRole { store, use, gradient, optimizer };

struct TensorPlacement {
  std::string tensor;
  TensorRole role = TensorRole::store;
  DimSplits dims;
  std::vector<std::string> flat{};  ///< the mesh axes that split the flattened elements that `dims` leave

  bool operator==(const TensorPlacement&) const = default;
};

struct CutPointPlacement {
  std::string cut_point;
  DimSplits dims;

  bool operator==(const CutPointPlacement&) const = default;
};

/// A tensor that is gathered at use.
struct TensorGather {
  std::string tensor;
  std::string unit;
  bool keep = false;

  bool operator==(const TensorGather&) const = default;
};

/// Consecutive layers on one stage, up to the next chunk's first.
struct Chunk {
  std::uint32_t first_layer = 0;
  std::uint32_t stage = 0;

  bool operator==(const Chunk&) const = default;
};

struct Action {
  enum class Kind : std::uint8_t { forward, backward, backward_input, backward_weight } kind = Kind::forward;
  std::uint32_t chunk = 0;
  std::uint32_t microbatch = 0;

  bool operator==(const Action&) const = default;
};

struct Pipeline {
  std::string mesh_axis;  ///< empty: there is none
  std::vector<Chunk> chunks;
  std::vector<std::vector<Action>> actions;  ///< of each stage, in order

  bool operator==(const Pipeline&) const = default;
};

enum class HookKind : std::uint8_t { sync_gradients, after_step };

[[nodiscard]] const char* to_string(HookKind kind) noexcept;

/// A state that a hook keeps for each of its tensors.
struct HookState {
  std::string name;
  bool copies_tensor = false;  ///< begins as a copy of the tensor, otherwise as zero

  bool operator==(const HookState&) const = default;
};

/// A hook of a strategy. shardrun/strategy.h says when it runs.
struct Hook {
  HookKind kind = HookKind::sync_gradients;
  std::string mesh_axis;
  std::uint32_t every = 1;           ///< of after_step: steps
  std::vector<std::string> tensors;  ///< in the order of the request
  std::vector<HookState> states;

  bool operator==(const Hook&) const = default;
};

/// A tensor that each rank has its own version of, along a mesh axis.
struct VaryingTensor {
  std::string tensor;
  std::string mesh_axis;

  bool operator==(const VaryingTensor&) const = default;
};

/// A strategy's answer. Names are those of the request: globs are expanded and dimensions are indices. Of two
/// statements about one thing only the later one remains. What is not named was not placed.
struct PlanDraft {
  std::vector<MeshAxis> mesh;  ///< major to minor; the product is the request's ranks
  std::vector<AxisPlacement> axes;
  std::vector<TensorPlacement> tensors;
  std::vector<CutPointPlacement> cut_points;
  std::vector<TensorGather> gathers;
  Pipeline pipeline;
  std::uint64_t bucket_bytes = 0;  ///< of gradients that are reduced together; 0: each tensor by itself
  std::vector<Hook> hooks{};       ///< at most one of each kind
  std::vector<VaryingTensor> varying{};

  bool operator==(const PlanDraft&) const = default;

  /// Null where there is none.
  [[nodiscard]] const Hook* find_hook(HookKind kind) const noexcept;
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
  [[nodiscard]] PlanDraft make_plan(const StrategyRequest& request) const;

  /// The hooks of the plan that it wrote for this request. They keep the strategy open. Null for a plan without hooks.
  [[nodiscard]] std::shared_ptr<const Hooks> hooks(const StrategyRequest& request, const PlanDraft& plan) const;

 private:
  explicit Strategy(Plugin plugin) : plugin_(std::move(plugin)) {}

  Plugin plugin_;
};

}  // namespace shardrun::plugins
