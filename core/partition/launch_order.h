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

/// The order in which ranks launch transfers in the device's memory.
///
/// A rank gives all of them to one queue, which holds each until its peers have come to it. This includes sends: a
/// message is stored nowhere until it is received. So all transfers of all ranks need one order, and each rank follows
/// its part of it. The ranks of a stage have one program, so their transfers along axes other than the pipeline's are
/// in one order.
namespace shardrun::partition {

/// Sets StageMessage::place: 0, 1, 2, … in the order in which a stage launches its messages and collectives. Receives
/// and collectives keep their places in the stage's list. A send may come later than its value is made: first the stage
/// receives all messages that its receiver sends before. `most`: least_under_way().
void order_launches(IdVector<StageId, std::vector<StageMessage>>& stages, std::size_t most);

/// One transfer in the device's memory, as a rank's queue has it.
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

/// Simulates queues, one per stage, that hold each launch along the pipeline's axis until its peers have come to it: to
/// the launch of the same name, dtype and reduction.
/// Throws Error{job} if they wait for each other, saying where each stands.
void require_one_order(const std::string& function, const IdVector<StageId, std::vector<Launch>>& stages,
                       mesh::AxisId axis);

/// Checks the launches of all ranks before they run.
class LaunchOrders {
 public:
  /// Adds the programs of a rank. Throws Error{internal} if another rank of its stage launches in another order.
  void add(StageId stage, const Programs& programs);
  /// REQUIRES: there is a rank of each stage. Throws as require_one_order(), for the programs of each function.
  void check(const Pipeline& pipeline) const;

 private:
  std::map<StageId, std::int64_t> ranks_;  ///< the first of each stage
  /// By number of the program: the function, and its launches on each stage.
  std::vector<std::pair<std::string, std::map<StageId, std::vector<Launch>>>> programs_;
};

}  // namespace shardrun::partition
