#include "core/verify/workload.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/data/feed.h"
#include "core/train/steps.h"
#include "core/workload/program.h"

namespace shardrun::verify {
namespace {

/// Makes a call for each entry of `rows`. Their samples follow each other.
std::vector<Call> calls_of(std::string_view function, const std::vector<std::int64_t>& rows, device::Scalars scalars) {
  std::vector<Call> calls;
  for (std::size_t c = 0; c < rows.size(); ++c) {
    scalars.first_microbatch = c == 0;
    calls.push_back({function, rows[c], c + 1 == rows.size(), scalars});
    scalars.first_sample += rows[c];
  }
  return calls;
}

std::vector<Workload::Batch> batches_of(const std::vector<std::int64_t>& rows) {
  std::vector<Workload::Batch> batches;
  std::int64_t first = 0;
  for (const std::int64_t each : rows) {
    batches.push_back({first, each});
    first += each;
  }
  if (rows.size() > 2 && rows.back() != rows.front()) {
    std::rotate(batches.begin() + 1, batches.end() - 1, batches.end());
  }
  return batches;
}

}  // namespace

Workload workload_of(const job::Job& job, const compile::Compiled& compiled) {
  const bool predicts = job::applies_model(job) && !job::generates(job);
  return {.graph = compiled.graph,
          .microbatch_rows = compiled.microbatch_rows,
          .evaluation_rows = job::applies_model(job) ? std::vector<std::int64_t>() : compiled.evaluation_rows,
          .iterated_rows = compiled.iterated_rows,
          .predicted = predicts ? batches_of(compiled.evaluation_rows) : std::vector<Workload::Batch>(),
          .dataset = compiled.dataset.get(),
          .seed = job.seed,
          .learning_rate = [&job](std::int64_t step) { return train::learning_rate(job.train, step); },
          .job = &job,
          .weights = compiled.weights.get()};
}

std::vector<graph::StateId> written_states(const graph::Graph& graph) {
  std::set<graph::StateId> written;
  for (const graph::Function& function : graph.functions) {
    for (const graph::StateWrite& write : function.writes) {
      written.insert(write.state);
    }
  }
  return {written.begin(), written.end()};
}

std::vector<Call> gradient_calls(const Workload& workload, std::int64_t step) {
  const std::vector<std::int64_t>& rows = workload.microbatch_rows;
  const std::int64_t batch = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  if (rows.empty()) {
    return {};
  }
  return calls_of(workload.graph.find(graph::Role::repeated, rows.front())->name, rows,
                  {.seed = workload.seed, .step = step, .first_sample = step * batch});
}

Call update_call(const Workload& workload, std::int64_t step) {
  if (!workload.sequences.empty()) {
    return {.function = workload.sequences[static_cast<std::size_t>(step)].name, .rows = 1};
  }
  if (workload.predicts()) {
    const Workload::Batch& batch = workload.predicted[static_cast<std::size_t>(step)];
    return {.function = workload::forward_function,
            .rows = batch.rows,
            .scalars = {.seed = workload.seed, .first_sample = batch.first}};
  }
  return {.function = workload.graph.find(graph::Role::once)->name,
          .scalars = {.seed = workload.seed,
                      .step = step,
                      .learning_rate = workload.trains() ? workload.learning_rate(step) : 0,
                      .first_sample = step * workload.iterated_rows}};
}

std::string kept_output(const Workload& workload, std::int64_t step) {
  return std::string(workload::forward_output) +
         workload::kept_suffix(workload.predicted[static_cast<std::size_t>(step)].rows,
                               workload.predicted.front().rows);
}

std::vector<Call> evaluation_calls(const Workload& workload) {
  return calls_of(workload::evaluate_function, workload.evaluation_rows, {.seed = workload.seed});
}

namespace {

/// Fills the inputs of the call for a sequence. Its pages are in order.
void feed(const Workload::Sequence& sequence, runtime::Executor& executor, std::size_t program) {
  const auto input = [&](std::string_view name) {
    const std::optional<device::TensorView> found = executor.find_input(program, name);
    return found ? device::elements_of<std::int32_t>(*found) : std::span<std::int32_t>();
  };
  for (const std::string_view name : {"positions", "pages"}) {
    const std::span<std::int32_t> numbers = input(name);
    std::iota(numbers.begin(), numbers.end(), 0);
  }
  std::ranges::copy(sequence.tokens, input("inputs").begin());
  std::ranges::copy(sequence.kept, input("kept").begin());
}

}  // namespace

void feed(const Workload& workload, const Call& call, runtime::Executor& executor, std::size_t program,
          std::size_t number) {
  if (!workload.sequences.empty()) {
    return feed(*std::ranges::find(workload.sequences, call.function, &Workload::Sequence::name), executor, program);
  }
  const std::optional<device::TensorView> found = executor.find_input(program, "inputs", number);
  if (!found) {
    return;
  }
  const device::TensorView& inputs = *found;
  if (workload.predicts()) {
    return data::feed_inputs(executor.host(device::Access::write), inputs,
                             [&](std::int64_t row, const device::TensorView& rows) {
                               workload.dataset->fill_evaluation(call.scalars.first_sample + row, rows, {});
                             });
  }
  const device::TensorView targets = *executor.find_input(program, "targets", number);
  if (workload.graph.find(call.function, call.rows)->role != graph::Role::on_demand) {
    data::feed_training(*workload.dataset, workload.seed, call.scalars.first_sample,
                        executor.host(device::Access::write), inputs, targets);
  } else {
    data::feed_evaluation(*workload.dataset, call.scalars.first_sample, executor.host(device::Access::write), inputs,
                          targets);
  }
}

}  // namespace shardrun::verify
