#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/compile/compile.h"
#include "core/device/device.h"
#include "core/device/hash.h"
#include "core/partition/agreements.h"
#include "core/runtime/executor.h"
#include "core/train/rank_link.h"

namespace shardrun::train {

/// Compares, by hashes, the bits of states of which several ranks hold copies (replicas). The plan says which these
/// are. Every rank has one such object and calls it at the same points. Comparing allocates nothing.
class Replicas {
 public:
  /// The arguments outlive this object. `link` is connected.
  Replicas(const compile::Compiled& compiled, runtime::Executor& executor, RankLink& link);
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  /// Whether there is anything to compare; the same on all ranks.
  [[nodiscard]] bool exist() const noexcept { return !sets_.empty(); }

  /// If replicas differ, throws Error{numerics} on all ranks, naming the tensor and the ranks. A rank whose own memory
  /// has changed throws Error{damaged}. `step`: number of steps done.
  void compare(std::int64_t step);

  /// The number of steps that had been done at the last comparison without differences.
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
  std::vector<bool> held_;  ///< per set: this rank holds it
  device::TensorHashes hashes_;
  std::span<const std::uint64_t> own_;   ///< the hash of each state of each set, in order
  std::vector<std::int32_t> largest_;    ///< per set: this rank's numbers for the all_reduce, then the largest of all
  std::vector<std::int32_t> exchanged_;  ///< operands of an all_reduce, then its results
  std::vector<std::pair<mesh::AxisId, std::size_t>> comparisons_;  ///< the axes of the sets, and their programs
  std::optional<std::int64_t> last_equal_;
};

/// The ranks whose hashes differ from the majority's.
struct Dissent {
  std::string text;  ///< "rank 2 has other bits than ranks 0 and 1"; without a majority: the ranks grouped by hash
  bool has_majority = false;
};

/// `hashes`: one per rank; they are not all equal.
[[nodiscard]] Dissent dissent_of(const std::vector<int>& ranks, const std::vector<std::uint64_t>& hashes);

/// The properties of a device on which the rounding of its kernels depends: "AVX2"; in mixed precision and on GPUs also
/// the products, "AVX-512, bf16 products: widened to float32".
[[nodiscard]] std::string kernels_of(const device::DeviceFacts& facts, bool mixed);

/// Explains why replicas differ, and what to do. `kernels`: kernels_of() of all ranks.
[[nodiscard]] std::string cause_of(const std::set<std::string>& kernels, const std::string& transports);

}  // namespace shardrun::train
