#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/mesh/placement.h"
#include "core/partition/partition.h"

namespace shardrun::checkpoint {

/// A state that a checkpoint holds, as one tensor or, if it varies between ranks, as several.
struct SavedTensor {
  StoredTensor tensor;   ///< without pieces
  graph::StateId state;  ///< the state with these values
};

/// A saved tensor, and the ranks that hold each of its parts.
struct HeldTensor {
  struct Part {
    mesh::Box box;  ///< of a state of which several ranks have some elements: those that this rank writes
    std::vector<std::size_t> ranks;
    std::int64_t first = 0;  ///< of the box's elements, which follow each other, in the ranks' memory of the state
  };
  SavedTensor saved;
  std::vector<Part> parts;  ///< they do not overlap
};

/// What a rank writes: consecutive elements of its own part of a state.
struct OwnPiece {
  std::size_t tensor = 0;   ///< index in Contents::tensors
  mesh::Interval elements;  ///< of the rank's part, in row-major order
  mesh::Box box;            ///< the same elements in the whole tensor
};

/// What a checkpoint of a job holds, and which rank writes which piece. All ranks compute the same.
struct Contents {
  std::vector<SavedTensor> tensors;
  std::vector<std::vector<OwnPiece>> of_ranks;  ///< per rank
};

/// The states that last from step to step: parameters (in mixed precision their float32 copies), moments, fields, and
/// hook states. `device`: of the ranks.
[[nodiscard]] std::vector<HeldTensor> held_tensors(const graph::Graph& graph, const partition::Partition& partition,
                                                   const device::Device& device);

/// Replicas are written once: the ranks that hold them share them, in pieces of 64 KiB or more, and ranks with the
/// least to write come first.
[[nodiscard]] Contents contents_of(std::vector<HeldTensor> tensors, std::int64_t ranks);

/// The name of the tensor that has a state's values on this rank: the state's, or of one that varies between ranks
/// "residual@data=1".
[[nodiscard]] std::string stored_name(const graph::State& state, const mesh::Placement& placement,
                                      const mesh::Mesh& mesh, const mesh::Coordinates& at);

/// The role of a state that lasts from step to step; nothing for others, and for the float32 copy of a parameter, which
/// is stored as the parameter.
[[nodiscard]] std::optional<TensorRole> role_of(const graph::Graph& graph, graph::StateId state);

/// The element type of a file for one of a tensor, and back.
[[nodiscard]] DType stored_type(graph::DType dtype);
/// Throws Error{data} for a type that no tensor has.
[[nodiscard]] graph::DType loaded_type(DType dtype);

}  // namespace shardrun::checkpoint
