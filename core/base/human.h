#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shardrun {

// Numbers formatted for people, mostly with three significant digits. Functions of a `double` give "-" if it is
// negative or not finite.

/// A count or a rate without a unit: "950", "12.3k", "1.23M", "4.56G".
[[nodiscard]] std::string human_count(double value);
/// A number with a unit and SI prefixes: "0 FLOP", "950 FLOP", "12.3 kFLOP", "3.35 EFLOP".
[[nodiscard]] std::string human_quantity(double value, std::string_view unit);
/// A number of bytes: "0 B", "950 B", "1.50 KiB", "12.3 MiB".
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);
/// A duration that a person waits: "0.42s", "3.2s", "59s", "1m05s", "2h03m", "4d05h".
[[nodiscard]] std::string human_duration(double seconds);
/// A measured or predicted duration: "45.6 us", "1.23 ms", "12.1 s"; from a minute on as in human_duration().
[[nodiscard]] std::string human_time(double seconds);
/// A number with its noun: "1 thread", "4 threads", "0 steps". `plural` is for irregular nouns: "2 processes".
[[nodiscard]] std::string counted(std::int64_t count, std::string_view singular, std::string_view plural = {});

}  // namespace shardrun
