#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/mesh/shards.h"

namespace shardrun::cli {

/// The placement of a tensor in one of its roles.
struct PlacedRole {
  std::string name;
  mesh::Placement placement;
};

/// A state or a cut point of the job. Its first role is drawn, or, of an engine, the parts that its ranks declare.
struct PlacedTensor {
  std::string name;
  std::string kind;
  graph::TensorType type;
  std::vector<PlacedRole> roles = {};
  std::vector<mesh::Shard> declared = {};
  IdVector<partition::StageId, bool> stages = {};  ///< of a pipeline: whether a stage has the tensor

  [[nodiscard]] std::size_t element_bytes() const noexcept { return graph::element_bytes(type.dtype); }
};

/// The states and cut points whose names match `wanted`, a name or a glob. Throws Error{usage} if there is none.
[[nodiscard]] std::vector<PlacedTensor> find_tensors(const compile::Compiled& compiled, const std::string& wanted);

/// The parts of a tensor in its first role, with the ranks that have them.
[[nodiscard]] std::vector<mesh::Shard> shards_of(const PlacedTensor& tensor, const compile::Compiled& compiled);

/// Where a rank is, as far as it is known: else "".
struct RankPlace {
  std::string host;
  std::string device;  ///< as in a run's summary
};

/// Of all ranks. If the output folder has a run with as many ranks, as its summary says. Otherwise as a run would have
/// them that is started as this process was: here, or by the launcher that has started this process, which knows the
/// ranks of its own host. [cluster] ranks_per_machine limits those that are here.
[[nodiscard]] std::vector<RankPlace> places_of(const job::Job& job, const compile::Compiled& compiled);

/// For people: a drawing and a table of the ranks' parts. `width`: of the screen.
[[nodiscard]] std::string sharding_text(const PlacedTensor& tensor, const compile::Compiled& compiled,
                                        const std::vector<RankPlace>& places, std::size_t width);

/// For programs.
[[nodiscard]] std::string sharding_json(const std::vector<PlacedTensor>& tensors, const compile::Compiled& compiled,
                                        const std::vector<RankPlace>& places);

}  // namespace shardrun::cli
