#include "core/run/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/compile/compile.h"
#include "core/compile/plugins.h"
#include "core/forecast/disk.h"
#include "core/run/earlier_run.h"
#include "core/run/requirements.h"
#include "core/run/resuming.h"

namespace shardrun::run {
namespace {

void append(std::vector<std::string> lines, std::vector<std::string>& to) {
  std::ranges::move(lines, std::back_inserter(to));
}

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

Prepared prepare(const job::Job& job, const Preparing& preparing) {
  job::Job placed = job;
  placed.machine_ranks = std::max<std::int64_t>(preparing.ranks_here, 1);  // unknown: no ranks share a machine
  Prepared prepared = {.compiled = compile::compile(placed, preparing.rank, preparing.now_at), .notices = {}};
  if (preparing.writes) {
    begin_from(open_resumed(job, prepared.notices, preparing.replaces && job.task != job::Task::infer),
               prepared.compiled);
  }
  const checkpoint::GivenWeights* const weights = prepared.compiled.weights.get();
  const bool has_own_context = job.where("model", "context") != job.where("model", "from");
  if (!job.weights.empty() && weights != nullptr && !has_own_context && !weights->note().empty()) {
    prepared.notices.push_back(weights->note());
  }
  if (preparing.writes && preparing.rank == 0) {
    require_outputs(job, preparing.replaces_file);
  }
  if (job::generates(job) && job.infer.slots == 0) {
    prepared.notices.push_back(fmt::format("slots = auto: {} at once", counted(prepared.compiled.slots, "prompt")));
  }
  append(require_runnable(job, prepared.compiled, preparing.ranks_here, preparing.processes), prepared.notices);
  if (preparing.processes > 0) {
    require_launchable(job, prepared.compiled);
  }
  if (preparing.writes) {
    if (!preparing.replaces && preparing.rank == 0) {
      require_same_job(job, prepared.compiled);
    }
    append(forecast::require_disk(job, prepared.compiled, preparing.replaces), prepared.notices);
  }
  if (job.restarts > 0 && !preparing.restarted_by.empty()) {
    prepared.notices.push_back(
        fmt::format("[job] restarts is left to {}, which started the ranks", preparing.restarted_by));
  }
  return prepared;
}

void prepare_data(const job::Job& job, Prepared& prepared) {
  check_data(job, prepared.compiled);
  if (prepared.compiled.weights != nullptr) {
    prepared.compiled.weights->check();
  }
  load_data(prepared.compiled);
  if (prepared.compiled.resumed != nullptr) {
    prepared.notices.push_back(told_of_resumed(prepared.compiled));
  }
  append(check_resumed(job, prepared.compiled), prepared.notices);
}

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
