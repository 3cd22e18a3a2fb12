#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/mesh/shards.h"

namespace shardrun::cli {

/// The placement of a tensor in a role such as store or gradient.
struct PlacedRole {
  std::string name;
  mesh::Placement placement;
};

/// A state, cut point, input or output of the job. Its first role is drawn. For an engine, the parts that its ranks
/// declare are drawn.
struct PlacedTensor {
  std::string name;
  std::string kind;
  graph::TensorType type;
  std::vector<PlacedRole> roles = {};
  std::vector<mesh::Shard> declared = {};
  IdVector<partition::StageId, bool> stages = {};  ///< with a pipeline: whether each stage has the tensor

  [[nodiscard]] std::size_t element_bytes() const noexcept { return graph::element_bytes(type.dtype); }
};

/// The tensors of the job whose names match `wanted`, a name or a glob. Throws Error{usage} if none matches.
[[nodiscard]] std::vector<PlacedTensor> find_tensors(const compile::Compiled& compiled, const std::string& wanted);

/// All states of the job, or all that its engine's ranks declare.
[[nodiscard]] std::vector<PlacedTensor> all_states(const compile::Compiled& compiled);

/// The parts of a tensor in its first role, each with the ranks that have it.
[[nodiscard]] std::vector<mesh::Shard> shards_of(const PlacedTensor& tensor, const compile::Compiled& compiled);

/// Host and device of a rank; "" if unknown.
struct RankPlace {
  std::string host;
  std::string device;  ///< as in the summary of a run
};

/// The places of all ranks. If the output folder has the summary of a run with as many ranks, they are taken from
/// there. Otherwise they are the places that ranks would get if this process started them: on this machine, limited by
/// [cluster] ranks_per_machine, or on this host if another launcher started this process.
[[nodiscard]] std::vector<RankPlace> places_of(const job::Job& job, const compile::Compiled& compiled);

/// The sharding for people: a drawing, and a table of the ranks' parts. `width`: columns of the screen.
[[nodiscard]] std::string sharding_text(const PlacedTensor& tensor, const compile::Compiled& compiled,
                                        const std::vector<RankPlace>& places, std::size_t width);

/// The sharding as JSON.
[[nodiscard]] std::string sharding_json(const std::vector<PlacedTensor>& tensors, const compile::Compiled& compiled,
                                        const std::vector<RankPlace>& places);

}  // namespace shardrun::cli
