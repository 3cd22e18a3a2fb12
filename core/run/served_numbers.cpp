#include "core/run/served_numbers.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/base/endpoint.h"
#include "core/base/error.h"
#include "core/checkpoint/saved_state.h"
#include "core/files/folder.h"

namespace shardrun::run {
namespace {

constexpr const char* numbers_path = "/metrics";

}  // namespace

ServedNumbers::ServedNumbers(const job::Job& job, const RunSettings& settings) {
  if (job.metrics.prometheus.empty()) {
    return;
  }
  const char* const task = job.task == job::Task::train ? "train" : "iterate";
  numbers_ = std::make_unique<metrics::Exposition>(
      settings.origin.version, job.name, task,
      files::human_path(settings.output.empty() ? job.output : settings.output), job.ranks, checkpoint::last_step(job));
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
