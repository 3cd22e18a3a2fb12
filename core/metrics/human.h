#pragma once

#include <cstdint>
#include <string>

namespace shardrun::metrics {

// Numbers as people read them, three digits that matter.

/// "950", "12.3k", "1.23M", "4.56G". For counts and rates; "-" where the number is not finite or is negative.
[[nodiscard]] std::string human_count(double value);
/// "0 B", "950 B", "1.50 KiB", "12.3 MiB".
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);
/// "0.42s", "3.2s", "59s", "1m05s", "2h03m", "4d05h"; "-" where the number is not finite or is negative.
[[nodiscard]] std::string human_duration(double seconds);

}  // namespace shardrun::metrics
