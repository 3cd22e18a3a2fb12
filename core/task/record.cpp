#include "core/task/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "core/metrics/human.h"
#include "core/metrics/rundir.h"

namespace shardrun::task {
namespace {

/// The median step time is that of the last so many steps.
constexpr std::size_t median_window = 4096;

double median_step(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Private memory of this process that is not the arena's: what malloc, libraries and stacks hold.
std::uint64_t private_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "RssAnon:") {
      std::uint64_t kilobytes = 0;
      status >> kilobytes;
      return kilobytes * 1024;
    }
  }
  return 0;
}

}  // namespace

metrics::Summary planned_summary(const Compiled& compiled) {
  metrics::Summary summary;
  summary.parameters = graph::parameter_count(compiled.graph);
  summary.data_bytes = compiled.dataset == nullptr ? 0 : compiled.dataset->host_bytes();
  const partition::MemoryUse& memory = compiled.programs.memory;
  summary.ranks = {{.planned_bytes = memory.peak,
                    .categories = {memory.parameters, memory.gradients, memory.optimizer, memory.activations,
                                   memory.communication, memory.scratch}}};
  return summary;
}

Record::Record(const job::Job& job, const Compiled& compiled, Display& display, const metrics::RunFolder& folder,
               int rank)
    : display_(display),
      folder_(folder),
      begin_(std::chrono::steady_clock::now()),
      log_(metrics::log_path(job.output, rank)) {
  if (rank == 0) {
    lines_.emplace(metrics::metrics_path(job.output));
  }
  step_seconds_.reserve(median_window);
  summary = planned_summary(compiled);
}

void Record::say(const std::string& line) {
  log(line);
  if (is_first()) {
    display_.line(line);
  }
}

void Record::log(const std::string& line) {
  log_.write(line);
  if (const std::string failure = log_.take_failure(); !failure.empty()) {
    display_.line(failure);
  }
}

void Record::count_step(double seconds) {
  if (step_seconds_.size() < median_window) {
    step_seconds_.push_back(seconds);
  } else {
    step_seconds_[static_cast<std::size_t>(summary.steps) % median_window] = seconds;
  }
  ++summary.steps;
}

void Record::write(const metrics::StepRecord& step) {
  if (lines_) {
    folder_.require_owned();
    lines_->write(step);
  }
}

void Record::write(std::span<const metrics::JsonField> fields) {
  if (lines_) {
    folder_.require_owned();
    lines_->write(fields);
  }
}

void Record::update(const metrics::ProgressUpdate& update) {
  if (is_first()) {
    display_.update(update);
  }
}

void Record::results_are(Results results) {
  if (is_first()) {
    note_results(results);
    display_.results_are(results);
  }
}

void Record::now_at(std::string_view what, std::int64_t done, std::int64_t total) {
  if (is_first()) {
    display_.now_at(what, done, total);
  }
}

void Record::finish_progress() {
  if (is_first()) {
    display_.finish();
  }
}

void Record::finish(const runtime::Executor& executor, const char* status, int exit_code, std::uint64_t wire_bytes) {
  summary.status = status;
  summary.exit_code = exit_code;
  summary.seconds = seconds_since(begin_);
  summary.step_ms_median = 1000 * median_step(step_seconds_);
  summary.ranks[0].peak_bytes = executor.arena()->touched_bytes();
  summary.ranks[0].private_bytes = private_bytes();
  summary.ranks[0].wire_bytes = wire_bytes;
  log(fmt::format("{} after {}", status, metrics::counted(summary.steps, "step")));
}

}  // namespace shardrun::task
