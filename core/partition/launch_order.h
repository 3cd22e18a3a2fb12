#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/partition/deadlock.h"
#include "core/partition/pipeline.h"
#include "core/partition/program.h"

/// The order in which ranks launch transfers in device memory.
///
/// A rank launches all its transfers into one queue, and a launch blocks the queue until the rank's peers have reached
/// it. This includes sends: no one stores a message until it is received. To avoid deadlock, all transfers of all ranks
/// have one order, and each rank launches its transfers in that order. The ranks of a stage execute the same program,
/// so along mesh axes other than the pipeline's their order is the same.
namespace shardrun::partition {

/// Sets StageMessage::place: 0, 1, 2, … in the order in which a stage launches its messages and collectives. Receives
/// and collectives keep the order of the stage's list. A send can move back, behind the receives of messages that its
/// receiver sends earlier. `most`: the result of least_under_way().
void order_launches(IdVector<StageId, std::vector<StageMessage>>& stages, std::size_t most);

/// One transfer in device memory, as it is launched into a rank's queue.
struct Launch {
  std::string name;
  mesh::AxisId axis = {};
  Collective collective = Collective::all_reduce;
  Link link = {};
  Reduction reduction = Reduction::sum;
  graph::DType dtype = graph::DType::f32;

  bool operator==(const Launch&) const = default;
};

/// A program's launches, in the order of their starts.
[[nodiscard]] std::vector<Launch> launches_of(const Program& program);

/// Simulates one queue per stage. Each queue holds a launch along the pipeline's axis until its peers' queues have
/// reached the launch of the same name, dtype and reduction.
/// Throws Error{job} if the queues wait for each other; the message says where each waits.
void require_one_order(const std::string& function, const IdVector<StageId, std::vector<Launch>>& stages,
                       mesh::AxisId axis);

/// Checks the order of all ranks' launches before they run.
class LaunchOrders {
 public:
  /// Adds the programs of a rank. Throws Error{internal} if an earlier rank of its stage has launches in another order.
  void add(StageId stage, const Programs& programs);
  /// Checks the programs of each function with require_one_order(). REQUIRES: a rank of each stage was added.
  void check(const Pipeline& pipeline) const;

 private:
  std::map<StageId, std::int64_t> ranks_;  ///< by stage: the first rank that was added
  /// By the program's number: its function, and its launches on each stage.
  std::vector<std::pair<std::string, std::map<StageId, std::vector<Launch>>>> programs_;
};

}  // namespace shardrun::partition
