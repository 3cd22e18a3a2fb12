#pragma once

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/partition/partition.h"
#include "core/runtime/interpreter.h"
#include "tests/support/model_cases.h"

namespace shardrun::test {

/// A transfer, and the number by which a fault selects it.
struct Numbered {
  std::size_t number = 0;
  partition::Transfer transfer;
};

/// A function, and the rows of each of its calls.
using CallsOf = std::pair<std::string_view, std::vector<std::int64_t>>;

/// The calls of an optimizer step.
[[nodiscard]] inline std::vector<CallsOf> step_calls(const ModelCase& model) {
  return {{"micro", model.microbatch_rows}, {"update", {0}}};
}

/// The transfers of one rank in these calls whose faults change results. The maximum in a softmax is left out, because
/// it only shifts exponents.
[[nodiscard]] inline std::vector<Numbered> visible_transfers(const ModelCase& model,
                                                             const partition::Partition& partition,
                                                             const std::vector<CallsOf>& calls, std::int64_t rank = 0) {
  const partition::Programs programs =
      partition::programs_of(model.graph, partition, {.device = device::Device::find("cpu"), .rank = rank});
  std::set<std::size_t> called;
  for (const auto& [function, rows] : calls) {
    const std::vector<std::size_t> found = programs.find_calls(function, rows);
    called.insert(found.begin(), found.end());
  }
  std::vector<Numbered> visible;
  std::size_t number = 0;
  for (std::size_t p = 0; p < programs.programs.size(); ++p) {
    for (const partition::Transfer& transfer : programs.programs[p].transfers) {
      if (called.contains(p) && transfer.reduction == Reduction::sum) {
        visible.push_back({number, transfer});
      }
      ++number;
    }
  }
  return visible;
}

/// Whether a fault of this kind changes the transferred data. Swapping blocks changes nothing if a block is empty, or
/// for a message, which has only one block.
[[nodiscard]] inline bool is_visible(const partition::Transfer& transfer, runtime::Fault::Kind kind) {
  const auto empty = [](const std::vector<std::int64_t>& counts) {
    return counts.size() > 1 && (counts[0] == 0 || counts[1] == 0);
  };
  return kind != runtime::Fault::Kind::swap ||
         !(empty(transfer.recv_counts) || empty(transfer.send_counts) ||
           transfer.collective == partition::Collective::send || transfer.collective == partition::Collective::receive);
}

}  // namespace shardrun::test
