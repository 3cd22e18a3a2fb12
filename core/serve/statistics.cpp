#include "core/serve/statistics.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/metrics/exposition.h"

namespace shardrun::serve {

void Histogram::add(double seconds) noexcept {
  const auto at = std::ranges::lower_bound(limits, seconds) - limits.begin();
  ++counts_[static_cast<std::size_t>(at)];
  sum_ += seconds;
}

std::string Histogram::text(std::string_view name, std::string_view help) const {
  std::string text = metrics::metric_head(name, "histogram", help);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    text += fmt::format("shardrun_{}_bucket{{le=\"{}\"}} {}\n", name,
                        i < limits.size() ? fmt::format("{}", limits[i]) : "+Inf", count);
  }
  return text + fmt::format("shardrun_{0}_sum {1}\nshardrun_{0}_count {2}\n", name, sum_, count);
}

std::string metrics_text(const Statistics& statistics, const Gauges& now) {
  std::string text = metrics::metric_head("requests_total", "counter",
                                          "Requests by status; 0: the client was gone before the answer.");
  for (const auto& [status, count] : statistics.requests) {
    text += fmt::format("shardrun_requests_total{{status=\"{}\"}} {}\n", status, count);
  }
  const auto add = [&](std::string_view name, std::string_view kind, std::string_view help, auto value) {
    text += metrics::metric_head(name, kind, help) + fmt::format("shardrun_{} {}\n", name, static_cast<double>(value));
  };
  add("ready", "gauge", "Whether the job takes prompts.", now.is_ready ? 1 : 0);
  add("connections", "gauge", "Open connections.", now.connections);
  add("queue_length", "gauge", "Prompts that wait.", now.waiting);
  add("prompts_in_work", "gauge", "Prompts that the job has.", now.in_work);
  add("slots", "gauge", "Prompts that the job continues at once.", now.slots);
  add("job_restarts_total", "counter", "Times that the job was started again.", now.restarts);
  add("prompt_tokens_total", "counter", "Tokens of prompts.", statistics.prompt_tokens);
  add("answer_tokens_total", "counter", "Tokens of answers.", statistics.answer_tokens);
  text += statistics.first_token.text("first_token_seconds", "From a request to its first token.");
  text += statistics.duration.text("request_seconds", "Duration of requests for answers.");
  return text;
}

}  // namespace shardrun::serve
