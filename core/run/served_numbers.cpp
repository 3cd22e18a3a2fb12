#include "core/run/served_numbers.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/endpoint.h"
#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/checkpoint/saved_state.h"

namespace shardrun::run {
namespace {

constexpr const char* numbers_path = "/metrics";

}  // namespace

ServedNumbers::ServedNumbers(const job::Job& job, const RunSettings& settings) {
  if (job.metrics.prometheus.empty()) {
    return;
  }
  const char* const task = job.task == job::Task::train ? "train" : "iterate";
  const std::filesystem::path output =
      std::filesystem::absolute(settings.output.empty() ? job.output : settings.output).lexically_normal();
  numbers_ =
      std::make_unique<metrics::Exposition>(settings.origin.version, job.name, with_replacements(output.native()), task,
                                            job.ranks, checkpoint::last_step(job));
  const auto page = [numbers = numbers_.get()](const std::string& path) {
    return path == numbers_path
               ? std::optional(http::Response{.type = metrics::Exposition::type, .body = numbers->text()})
               : std::nullopt;
  };
  try {
    server_ = std::make_unique<http::PageServer>(*endpoint_of(job.metrics.prometheus), page);
  } catch (const Error& error) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [metrics] prometheus: {}", job.where("metrics", "prometheus"), error.message()));
  }
}

std::string ServedNumbers::notice() const {
  return server_ == nullptr ? "" : fmt::format("metrics: {}{}", server_->address(), numbers_path);
}

}  // namespace shardrun::run
