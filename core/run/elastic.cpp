#include "core/run/elastic.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/compile/compile.h"
#include "core/compile/device.h"
#include "core/compile/plugins.h"
#include "core/run/requirements.h"

namespace shardrun::run {
namespace {

/// The same job file, parsed with another number of ranks.
job::Job with_ranks(const job::Job& job, std::int64_t ranks) {
  const std::vector<std::string> overrides = {fmt::format("job.ranks={}", ranks)};
  job::Job other =
      job::parse_job(job::read_job_text(job::canonical_text(job), job.file, overrides), compile::schema_providers());
  other.elastic_ranks = job.elastic_ranks;
  other.checkpoints.force_data = job.checkpoints.force_data;
  other.output = job.output;
  return other;
}

}  // namespace

job::Job with_fitting_ranks(const job::Job& job, std::int64_t most) {
  if (!job.elastic_ranks) {
    return job;
  }
  const std::int64_t least = job.elastic_ranks->least;
  std::optional<Error> first;
  for (std::int64_t ranks = std::max(least, std::min(most, compile::ranks_of_machine(job))); ranks >= least; --ranks) {
    try {
      job::Job other = ranks == job.ranks ? job : with_ranks(job, ranks);
      other.machine_ranks = ranks;
      static_cast<void>(require_runnable(other, compile::compile(other), ranks, ranks));
      return other;
    } catch (const Error& error) {
      if (!first) {
        first = error;
      }
    }
  }
  throw *first;
}

}  // namespace shardrun::run
