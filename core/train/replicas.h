#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/device/hash.h"
#include "core/partition/replicas.h"
#include "core/runtime/executor.h"
#include "core/train/rank_link.h"

namespace shardrun::train {

/// Finds out whether ranks that hold copies of a state (replicas) hold the same bits, by hashes. What is compared
/// follows from the plan. All ranks make one and call it at the same points. Comparing allocates nothing.
class Replicas {
 public:
  /// The arguments outlive this. `link` is connected.
  Replicas(const compile::Compiled& compiled, runtime::Executor& executor, RankLink& link);
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  /// Whether there is anything to compare: the same on all ranks.
  [[nodiscard]] bool exist() const noexcept { return !sets_.empty(); }

  /// Throws Error{numerics} on all ranks where replicas differ, with the tensor and the ranks. `step`: how many are
  /// done.
  void compare(std::int64_t step);

  /// After how many steps they were compared last and were equal.
  [[nodiscard]] std::optional<std::int64_t> last_equal() const noexcept { return last_equal_; }

 private:
  [[nodiscard]] bool any_differ();
  [[nodiscard]] std::string answer() const;
  [[nodiscard]] std::string difference_of_all();
  [[nodiscard]] std::string changed_answers() const;
  [[nodiscard]] std::string difference(const std::vector<std::string>& of_ranks) const;

  const compile::Compiled& compiled_;
  runtime::Executor& executor_;
  RankLink& link_;
  const std::vector<partition::ReplicaSet> sets_;
  std::vector<bool> held_;  ///< of each set: whether this rank has it
  device::TensorHashes hashes_;
  std::span<const std::uint64_t> own_;   ///< of each state of each set, in their order
  std::vector<std::int32_t> largest_;    ///< of each set
  std::vector<std::int32_t> exchanged_;  ///< what the operations work on
  std::optional<std::int64_t> last_equal_;
};

/// Who of some ranks does not have what the others have.
struct Dissent {
  std::string text;  ///< "rank 2 has other bits than ranks 0 and 1"; without a majority the ranks by what they have
  bool has_majority = false;
};

/// `hashes`: of what each of the ranks has; not all are equal.
[[nodiscard]] Dissent dissent_of(const std::vector<int>& ranks, const std::vector<std::uint64_t>& hashes);

}  // namespace shardrun::train
