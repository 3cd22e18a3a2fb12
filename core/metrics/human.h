#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace shardrun::metrics {

// Numbers as people read them, three digits that matter. All but `counted` give "-" where the number is not finite or
// is negative.

/// "950", "12.3k", "1.23M", "4.56G": a count or a rate of something that has no symbol.
[[nodiscard]] std::string human_count(double value);
/// "0 FLOP", "950 FLOP", "12.3 kFLOP", "3.35 EFLOP": in a unit that takes the prefixes of the SI.
[[nodiscard]] std::string human_quantity(double value, std::string_view unit);
/// "0 B", "950 B", "1.50 KiB", "12.3 MiB".
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);
/// How long a person waits: "0.42s", "3.2s", "59s", "1m05s", "2h03m", "4d05h".
[[nodiscard]] std::string human_duration(double seconds);
/// What was measured or predicted: "45.6 us", "1.23 ms", "12.1 s"; from a minute on as human_duration.
[[nodiscard]] std::string human_time(double seconds);
/// Without '.' and '..', and from the working folder where that is shorter.
[[nodiscard]] std::string human_path(const std::filesystem::path& path);
/// "1 thread", "4 threads", "0 steps"; "2 processes" where `plural` says so.
[[nodiscard]] std::string counted(std::int64_t count, std::string_view singular, std::string_view plural = {});

}  // namespace shardrun::metrics
