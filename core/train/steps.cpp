#include "core/train/steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/host_name.h"
#include "core/train/rank_task.h"

namespace shardrun::train {

metrics::Summary planned_summary(const compile::Compiled& compiled) {
  metrics::Summary summary;
  summary.parameters = graph::parameter_count(compiled.graph);
  summary.data_bytes = compiled.dataset == nullptr ? 0 : compiled.dataset->host_bytes();
  const partition::MemoryUse& memory = compiled.programs.memory;
  const std::string unit = compiled.device->has_units() ? compiled.device->facts().unit : "";
  summary.ranks = {{.host = host_name(),
                    .device = fmt::format("{}{}{}", compiled.device->name(), unit.empty() ? "" : ":", unit),
                    .planned_bytes = memory.peak,
                    .categories = {memory.parameters, memory.gradients, memory.optimizer, memory.activations,
                                   memory.communication, memory.scratch}}};
  return summary;
}

metrics::Summary run_steps(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                           metrics::Summary& failed) {
  switch (job.task) {
    case job::Task::train: return run_training(job, compiled, settings, failed);
    case job::Task::iterate: return run_iterating(job, compiled, settings, failed);
    case job::Task::infer:
      if (job::generates(job)) {
        return run_generating(job, compiled, settings, failed);
      }
      return job::applies_model(job) ? run_predicting(job, compiled, settings, failed)
                                     : run_inferring(job, compiled, settings, failed);
  }
  throw Error(ErrorCode::internal, "the job's task is unknown");
}

int exit_code_of_stop(const job::Job& job, int signal) noexcept {
  constexpr int temporary_failure = 75;
  return job.checkpoints.used ? temporary_failure : 128 + signal;
}

std::int64_t profile_interval(const job::Job& job) {
  constexpr std::int64_t usual_lines = 10;
  return job.task == job::Task::train && job.train.log_every > 0
             ? job.train.log_every
             : std::max<std::int64_t>(1, job::steps_of(job) / usual_lines);
}

std::string rate_unit(const job::Job& job) {
  return job::generates(job)                                ? "tok"
         : job::applies_model(job)                          ? "samples"
         : job.task == job::Task::infer                     ? "records"
         : job.task == job::Task::iterate                   ? "it"
         : job.data.text.empty() && job.data.tokens.empty() ? "samples"
                                                            : "tok";
}

}  // namespace shardrun::train
