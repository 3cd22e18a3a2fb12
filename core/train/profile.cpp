#include "core/train/profile.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardrun::train {

std::string profile_table(const std::vector<runtime::OpTime>& times) {
  double total = 0;
  for (const runtime::OpTime& time : times) {
    total += time.seconds;
  }
  std::string text =
      fmt::format("{:<10} {:<28} {:>9} {:>10} {:>7} {:>9}\n", "function", "op", "calls", "seconds", "share", "GFLOP/s");
  for (const runtime::OpTime& time : times) {
    if (time.calls > 0) {
      text += fmt::format("{:<10} {:<28} {:>9} {:>10.3f} {:>6.1f}% {:>9.1f}\n", time.function, time.op, time.calls,
                          time.seconds, 100 * time.seconds / std::max(total, 1e-12),
                          static_cast<double>(time.flops) / std::max(time.seconds, 1e-12) / 1e9);
    }
  }
  return text;
}

}  // namespace shardrun::train
