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
  IdVector<partition::StageId, bool> stages = {};  ///< for a pipeline: whether a stage has the tensor

  [[nodiscard]] std::size_t element_bytes() const noexcept { return graph::element_bytes(type.dtype); }
};

/// The states and cut points whose names match `wanted`, a name or a glob. Throws Error{usage} if there are none.
[[nodiscard]] std::vector<PlacedTensor> find_tensors(const compile::Compiled& compiled, const std::string& wanted);

/// The parts of a tensor in its first role, and the ranks that have them.
[[nodiscard]] std::vector<mesh::Shard> shards_of(const PlacedTensor& tensor, const compile::Compiled& compiled);

/// Where a rank is. Unknown fields are "".
struct RankPlace {
  std::string host;
  std::string device;  ///< as in a run's summary
};

/// The places of all ranks. If the output folder has a run with as many ranks, they are those of its summary. Otherwise
/// they are those that a run would have if it were started like this process: on this machine, or by the launcher that
/// started this process, which only knows the ranks of its own host. [cluster] ranks_per_machine limits the ranks of
/// this machine.
[[nodiscard]] std::vector<RankPlace> places_of(const job::Job& job, const compile::Compiled& compiled);

/// The sharding for people: a drawing and a table of the ranks' parts. `width`: that of the screen.
[[nodiscard]] std::string sharding_text(const PlacedTensor& tensor, const compile::Compiled& compiled,
                                        const std::vector<RankPlace>& places, std::size_t width);

/// The sharding as JSON.
[[nodiscard]] std::string sharding_json(const std::vector<PlacedTensor>& tensors, const compile::Compiled& compiled,
                                        const std::vector<RankPlace>& places);

}  // namespace shardrun::cli
