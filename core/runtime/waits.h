#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/runtime/communicator.h"

namespace shardrun::runtime {

/// The latest times in which a queue waited for transfers, in their order.
class Waits {
 public:
  /// REQUIRES: `wait` begins at or after the end of the one before.
  void add(const Communicator::Times& wait) noexcept {
    latest_[count_ % latest_.size()] = wait;
    ++count_;
  }

  /// Nanoseconds of `span` in which the queue did not wait. It is a lower bound: only the latest 64 waits are
  /// kept, and time before them is left out.
  [[nodiscard]] std::int64_t outside(const Communicator::Times& span) const noexcept {
    const std::size_t known = std::min(count_, latest_.size());
    std::int64_t begun = span.begun;
    std::int64_t waited = 0;
    for (std::size_t back = 1; back <= known; ++back) {
      const Communicator::Times& wait = latest_[(count_ - back) % latest_.size()];
      waited += std::max<std::int64_t>(0, std::min(wait.ended, span.ended) - std::max(wait.begun, span.begun));
      if (back == latest_.size() && count_ > known) {
        begun = std::max(begun, wait.begun);
      }
    }
    return std::max<std::int64_t>(0, span.ended - begun - waited);
  }

 private:
  std::array<Communicator::Times, 64> latest_{};
  std::size_t count_ = 0;
};

}  // namespace shardrun::runtime
