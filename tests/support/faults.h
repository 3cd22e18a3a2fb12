#pragma once

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/partition/partition.h"
#include "core/runtime/interpreter.h"
#include "tests/support/model_cases.h"

namespace shardrun::test {

/// A transfer by the number that a fault is planted at.
struct Numbered {
  std::size_t number = 0;
  partition::Transfer transfer;
};

/// A function, and the rows of its calls, one after the other.
using CallsOf = std::pair<std::string_view, std::vector<std::int64_t>>;

/// What an optimizer step calls.
[[nodiscard]] inline std::vector<CallsOf> step_calls(const ModelCase& model) {
  return {{"micro", model.microbatch_rows}, {"update", {0}}};
}

/// The transfers that one rank makes in some calls. Not the maximum in a softmax: it only shifts exponents.
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

/// Whether a fault of this kind changes what a transfer brings: an empty block may change places with another, and a
/// message has but one.
[[nodiscard]] inline bool is_visible(const partition::Transfer& transfer, runtime::Fault::Kind kind) {
  const auto empty = [](const std::vector<std::int64_t>& counts) {
    return counts.size() > 1 && (counts[0] == 0 || counts[1] == 0);
  };
  return kind != runtime::Fault::Kind::swap ||
         !(empty(transfer.recv_counts) || empty(transfer.send_counts) ||
           transfer.collective == partition::Collective::send || transfer.collective == partition::Collective::receive);
}

}  // namespace shardrun::test
