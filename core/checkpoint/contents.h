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

/// A tensor in a checkpoint. It has the values of a state; a state that varies between ranks has several such tensors.
struct SavedTensor {
  StoredTensor tensor;   ///< its `pieces` are empty
  graph::StateId state;  ///< the state that has these values
};

/// A tensor in a checkpoint, and which ranks hold each of its parts.
struct HeldTensor {
  struct Part {
    mesh::Box box;  ///< the elements that one of `ranks` writes
    std::vector<std::size_t> ranks;
    std::int64_t first = 0;  ///< index of the box's first element in these ranks' memory of the state
  };
  SavedTensor saved;
  std::vector<Part> parts;  ///< non-overlapping
};

/// What a rank writes of a tensor: consecutive elements of the rank's part of a state.
struct OwnPiece {
  std::size_t tensor = 0;   ///< index in Contents::tensors
  mesh::Interval elements;  ///< indices of the elements in the rank's part, in row-major order
  mesh::Box box;            ///< the same elements, in coordinates of the whole tensor
};

/// The tensors of a checkpoint, and which rank writes which piece. All ranks compute the same contents.
struct Contents {
  std::vector<SavedTensor> tensors;
  std::vector<std::vector<OwnPiece>> of_ranks;  ///< the pieces that each rank writes
};

/// The tensors of all states that are kept from step to step: parameters, optimizer moments, fields, and hook states. A
/// parameter in mixed precision has the values of its float32 copy. `device`: the device of the ranks.
[[nodiscard]] std::vector<HeldTensor> held_tensors(const graph::Graph& graph, const partition::Partition& partition,
                                                   const device::Device& device);

/// Divides the writing among ranks. Ranks that hold the same part divide it into pieces of at least 64 KiB, so that
/// each element is written once. Ranks with the fewest bytes so far are preferred.
[[nodiscard]] Contents contents_of(std::vector<HeldTensor> tensors, std::int64_t ranks);

/// The name of the tensor with the values of a state on the rank at `at`. It is the state's name or, if the state
/// varies between ranks, a name such as "residual@data=1".
[[nodiscard]] std::string stored_name(const graph::State& state, const mesh::Placement& placement,
                                      const mesh::Mesh& mesh, const mesh::Coordinates& at);

/// The role of a state that is kept from step to step. Returns nothing for other states. Also returns nothing for the
/// float32 copy of a parameter, because the copy is stored under the parameter's name.
[[nodiscard]] std::optional<TensorRole> role_of(const graph::Graph& graph, graph::StateId state);

/// The element type with which a file stores a tensor of the graph.
[[nodiscard]] DType stored_type(graph::DType dtype);
/// The reverse of stored_type(). Throws Error{data} for a type that a graph's tensors cannot have.
[[nodiscard]] graph::DType loaded_type(DType dtype);

}  // namespace shardrun::checkpoint
