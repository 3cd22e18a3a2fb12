#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/hook.h"

namespace shardrun::plan {

/// Consecutive layers on one stage: from `first_layer` up to, but without, the next chunk's first layer.
struct Chunk {
  std::uint32_t first_layer = 0;
  std::uint32_t stage = 0;

  bool operator==(const Chunk&) const = default;
};

/// An action of a stage on one chunk and one microbatch.
struct Action {
  enum class Kind : std::uint8_t { forward, backward, backward_input, backward_weight } kind = Kind::forward;
  std::uint32_t chunk = 0;
  std::uint32_t microbatch = 0;

  bool operator==(const Action&) const = default;
};

struct Pipeline {
  std::string mesh_axis;  ///< the mesh axis of the stages; empty: no pipeline
  std::vector<Chunk> chunks;
  std::vector<std::vector<Action>> actions;  ///< per stage, in execution order

  bool operator==(const Pipeline&) const = default;
};

/// The letter of an action: F for forward, B for backward, I and W for the two parts of backward.
[[nodiscard]] std::string_view letter(Action::Kind kind) noexcept;

/// An action as text: "2F0" is the forward of chunk 2, microbatch 0.
[[nodiscard]] std::string to_string(const Action& action);

struct MeshAxis {
  std::string name;
  std::uint32_t size = 1;

  bool operator==(const MeshAxis&) const = default;
};

/// For each dimension of a tensor, the mesh axes that split it, major to minor. A dimension without axes stays whole.
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
  /// Mesh axes that split the flattened elements of the part that `dims` gives a rank.
  std::vector<std::string> flat{};

  bool operator==(const TensorPlacement&) const = default;
};

struct CutPointPlacement {
  std::string cut_point;
  DimSplits dims;

  bool operator==(const CutPointPlacement&) const = default;
};

/// A tensor that is gathered where ops read it, together with the other tensors of its unit.
struct TensorGather {
  std::string tensor;
  std::string unit;
  bool keep = false;

  bool operator==(const TensorGather&) const = default;
};

/// A tensor whose values differ between the ranks along a mesh axis.
struct VaryingTensor {
  std::string tensor;
  std::string mesh_axis;

  bool operator==(const VaryingTensor&) const = default;
};

/// A strategy's answer; shardrun/strategy.h explains every field. Names are those of the request, with globs expanded,
/// and dimensions are indices. If the strategy places something twice, only the last statement is kept. Tensors, axes
/// and cut points that are not listed have no placement from the strategy.
struct Plan {
  std::string strategy;
  std::vector<MeshAxis> mesh;  ///< major to minor; the product of the sizes is the number of ranks
  std::vector<AxisPlacement> axes;
  std::vector<TensorPlacement> tensors;
  std::vector<CutPointPlacement> cut_points;
  std::vector<TensorGather> gathers;
  Pipeline pipeline;
  /// Bytes of a bucket of gradients that are reduced together; 0: each gradient is reduced separately.
  std::uint64_t bucket_bytes = 0;
  std::vector<Hook> hooks{};  ///< at most one of each kind
  std::vector<VaryingTensor> varying{};
  std::vector<std::string> notices{};  ///< messages to show to the user
  /// Set by the job, not by the strategy: the rank at each place of the mesh. Empty: each rank has its place's number.
  std::vector<std::int64_t> order{};
  /// Set by the job, not by the strategy: no sum of rounded numbers is split over ranks, so that their number does not
  /// change the sum's bits. A parameter that the strategy splits along a summed dimension is split along another one.
  bool whole_sums = false;
  /// Set by the job, not by the strategy: a stage of a pipeline can begin the next call of a program before later
  /// stages have ended the current one. See partition::Partition::overlaps.
  bool overlaps = false;

  bool operator==(const Plan&) const = default;

  [[nodiscard]] std::int64_t ranks() const noexcept;

  /// The hook of this kind; null if there is none.
  [[nodiscard]] const Hook* find_hook(HookKind kind) const noexcept;
};

[[nodiscard]] std::string to_string(const Plan& plan);

}  // namespace shardrun::plan
