#include "core/train/tracer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <system_error>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/files/atomic_file.h"
#include "core/files/folder.h"
#include "core/files/mapped_file.h"
#include "core/metrics/run_files.h"

namespace shardrun::train {
namespace {

/// Number of instructions in a step.
std::size_t instructions_per_step(const compile::Compiled& compiled) {
  std::size_t count = 0;
  for (const std::size_t program : compile::programs_of_step(compiled, compiled.programs)) {
    count += compiled.programs.programs[program].instructions.size();
  }
  return count;
}

/// The number of steps. For a stream of records it is not known.
std::int64_t all_steps(const job::Job& job) {
  return job.task == job::Task::infer ? std::numeric_limits<std::int64_t>::max() : job::steps_of(job);
}

std::int64_t steps_to_trace(const job::Job& job) { return std::min(job.trace_steps, all_steps(job)); }

}  // namespace

Tracer::Tracer(const job::Job& job, const compile::Compiled& compiled)
    : compiled_(compiled),
      first_(std::min(job.trace_first - 1, all_steps(job) - steps_to_trace(job))),
      most_steps_(static_cast<std::size_t>(steps_to_trace(job))),
      timeline_(most_steps_ * instructions_per_step(compiled)) {
  steps_.reserve(most_steps_);
}

Tracer::Recording::Recording(Tracer& tracer, runtime::Executor& executor, std::int64_t step)
    : tracer_(tracer), executor_(executor), is_recorded_(tracer.records(step)) {
  if (is_recorded_) {
    tracer_.steps_.push_back(
        {.step = step + 1, .begin = runtime::now_in_nanoseconds(), .first_span = tracer_.timeline_.spans().size()});
    executor_.record(&tracer_.timeline_);
  }
}

Tracer::Recording::~Recording() {
  if (is_recorded_) {
    executor_.record(nullptr);
    tracer_.steps_.back().end = runtime::now_in_nanoseconds();
    if (is_discarded_) {
      tracer_.steps_.pop_back();
    }
  }
}

void Tracer::write(const std::filesystem::path& output) {
  if (written_ || steps_.empty()) {
    return;
  }
  written_ = true;
  const std::filesystem::path path = metrics::trace_path(output, static_cast<int>(compiled_.programs.rank));
  files::create_folders(path.parent_path(), "the folder of traces");
  files::write_file_atomically(path, forecast::trace_of(steps_, timeline_, compiled_.programs).text());
}

namespace {

std::string joined_traces(const job::Job& job) {
  std::string all;
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    const std::filesystem::path path = metrics::trace_path(job.output, static_cast<int>(rank));
    std::error_code none;
    if (std::filesystem::exists(path, none)) {
      metrics::join_trace(all, files::MappedFile(path).text(), path.native());
    }
  }
  return all;
}

}  // namespace

void join_traces(const job::Job& job) {
  try {
    if (const std::string all = joined_traces(job); !all.empty()) {
      files::write_file_atomically(metrics::trace_path(job.output), metrics::with_arrows(all));
    }
  } catch (const Error& error) {
    write_to_standard_error(fmt::format("shardrun: there is no joined trace: {}\n", error.message()));
  }
}

}  // namespace shardrun::train
