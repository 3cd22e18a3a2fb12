#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace shardrun::serve {

/// Counts durations by upper limits, as Prometheus does.
class Histogram {
 public:
  static constexpr std::array<double, 12> limits = {0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 30, 60, 120, 300};

  void add(double seconds) noexcept;
  [[nodiscard]] std::string text(std::string_view name, std::string_view help) const;

 private:
  std::array<std::uint64_t, limits.size() + 1> counts_ = {};
  double sum_ = 0;
};

/// The counters and histograms of /metrics.
struct Statistics {
  std::map<int, std::uint64_t> requests;  ///< by status; 0: the client was gone before the answer
  std::uint64_t prompt_tokens = 0;
  std::uint64_t answer_tokens = 0;
  Histogram first_token;  ///< from a request's last byte to the first token of its first answer
  Histogram duration;     ///< of requests for answers, from their last byte to the end of the response
};

/// Values of /metrics that other objects count, as they are now.
struct Gauges {
  std::size_t waiting = 0;
  std::size_t in_work = 0;
  std::int64_t slots = 0;
  std::int64_t restarts = 0;
  std::size_t connections = 0;
  bool is_ready = false;
};

/// The text of /metrics, in Prometheus' text format.
[[nodiscard]] std::string metrics_text(const Statistics& statistics, const Gauges& now);

}  // namespace shardrun::serve
