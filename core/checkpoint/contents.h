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

/// A state in a checkpoint: a tensor or, if the state varies between ranks, one of several tensors.
struct SavedTensor {
  StoredTensor tensor;   ///< without pieces
  graph::StateId state;  ///< the state that has these values
};

/// A saved tensor, and which ranks hold each of its parts.
struct HeldTensor {
  struct Part {
    mesh::Box box;  ///< of a state of which several ranks have some elements: those that this rank writes
    std::vector<std::size_t> ranks;
    std::int64_t first = 0;  ///< of the box's elements, which follow each other, in the ranks' memory of the state
  };
  SavedTensor saved;
  std::vector<Part> parts;  ///< non-overlapping
};

/// What a rank writes of a tensor: consecutive elements of its own part of a state.
struct OwnPiece {
  std::size_t tensor = 0;   ///< index in Contents::tensors
  mesh::Interval elements;  ///< of the rank's part, in row-major order
  mesh::Box box;            ///< the same elements, in coordinates of the whole tensor
};

/// What a checkpoint of a job contains, and which rank writes which piece. All ranks compute the same.
struct Contents {
  std::vector<SavedTensor> tensors;
  std::vector<std::vector<OwnPiece>> of_ranks;  ///< per rank
};

/// The states that are kept from step to step: parameters (in mixed precision their float32 copies), moments, fields,
/// and hook states. `device`: the ranks' device.
[[nodiscard]] std::vector<HeldTensor> held_tensors(const graph::Graph& graph, const partition::Partition& partition,
                                                   const device::Device& device);

/// Divides the writing among ranks. Replicas are written once: the ranks that hold them share them, in pieces of at
/// least 64 KiB, and ranks that write least so far come first.
[[nodiscard]] Contents contents_of(std::vector<HeldTensor> tensors, std::int64_t ranks);

/// The name of the tensor that has this rank's values of a state: the state's name or, if it varies between ranks,
/// "residual@data=1".
[[nodiscard]] std::string stored_name(const graph::State& state, const mesh::Placement& placement,
                                      const mesh::Mesh& mesh, const mesh::Coordinates& at);

/// The role of a state that is kept from step to step. Nothing for other states, and for the float32 copy of a
/// parameter, which is stored under the parameter's name.
[[nodiscard]] std::optional<TensorRole> role_of(const graph::Graph& graph, graph::StateId state);

/// stored_type(): the element type in a file for one of a graph's tensor. loaded_type(): the reverse.
[[nodiscard]] DType stored_type(graph::DType dtype);
/// Throws Error{data} for a type that a graph's tensors cannot have.
[[nodiscard]] graph::DType loaded_type(DType dtype);

}  // namespace shardrun::checkpoint
