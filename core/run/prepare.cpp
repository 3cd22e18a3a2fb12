#include "core/run/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/forecast/disk.h"
#include "core/run/earlier_run.h"
#include "core/run/requirements.h"
#include "core/run/resuming.h"

namespace shardrun::run {
namespace {

void append(std::vector<std::string> lines, std::vector<std::string>& to) {
  std::ranges::move(lines, std::back_inserter(to));
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
  append(require_runnable(job, prepared.compiled, preparing.ranks_here, preparing.processes), prepared.notices);
  if (preparing.processes > 0) {
    require_launchable(job, prepared.compiled);
  }
  if (preparing.writes) {
    if (!preparing.replaces) {
      require_same_job(job, prepared.compiled);
    }
    append(forecast::require_disk(job, prepared.compiled), prepared.notices);
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

}  // namespace shardrun::run
