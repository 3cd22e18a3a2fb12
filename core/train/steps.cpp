#include "core/train/steps.h"

#include "core/train/rank_task.h"

namespace shardrun::train {

metrics::Summary planned_summary(const compile::Compiled& compiled) {
  metrics::Summary summary;
  summary.parameters = graph::parameter_count(compiled.graph);
  summary.data_bytes = compiled.dataset == nullptr ? 0 : compiled.dataset->host_bytes();
  const partition::MemoryUse& memory = compiled.programs.memory;
  summary.ranks = {{.planned_bytes = memory.peak,
                    .categories = {memory.parameters, memory.gradients, memory.optimizer, memory.activations,
                                   memory.communication, memory.scratch}}};
  return summary;
}

metrics::Summary run_steps(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                           metrics::Summary& failed) {
  return job.task == job::Task::train ? run_training(job, compiled, settings, failed)
                                      : run_iterating(job, compiled, settings, failed);
}

}  // namespace shardrun::train
