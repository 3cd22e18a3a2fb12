#include "core/train/training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/checkpoint/given_weights.h"
#include "core/data/feed.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"
#include "core/train/steps.h"

namespace shardrun::train {

const char* non_finite_text(double value) noexcept {
  return std::isnan(value) ? "NaN" : std::isinf(value) ? "infinite" : "not finite on another rank";
}

namespace {

/// The mean loss. If nothing counts, it is 0, or NaN if the sum is not finite.
double mean_of(double sum, double count) noexcept { return count == 0 ? sum * 0 : sum / count; }

/// The op whose results are summed to give the loss, or null.
const graph::Op* loss_op(const graph::Graph& graph) {
  const graph::StateId loss = graph.find_state("loss");
  const auto function = std::ranges::find(graph.functions, graph::Role::repeated, &graph::Function::role);
  if (function == graph.functions.end()) {
    return nullptr;
  }
  const auto write = std::ranges::find(function->writes, loss, &graph::StateWrite::state);
  graph::ValueId value = write == function->writes.end() ? graph::ValueId{} : write->value;
  while (value.exists()) {
    const graph::NodeId producer = function->values[value].producer;
    if (!producer.exists()) {
      return nullptr;
    }
    const graph::Node& node = function->nodes[producer];
    if (node.op->name != "sum_all") {
      return node.op;
    }
    value = node.inputs.front();
  }
  return nullptr;
}

/// A rank's finding as text for the other ranks: its order, then its name.
std::string text_of(const runtime::NonFiniteResult& bad) {
  return fmt::format("{} {}", fmt::join(bad.order, " "), bad.name);
}

/// The inverse of text_of(); nothing if the rank found nothing.
std::optional<runtime::NonFiniteResult> non_finite_of(const std::string& text) {
  std::istringstream from(text);
  runtime::NonFiniteResult bad;
  for (std::int32_t& number : bad.order) {
    from >> number;
  }
  from.ignore(1);
  std::getline(from, bad.name);
  return from ? std::optional(bad) : std::nullopt;
}

std::string made_alone(std::string_view /*name*/, const std::string& given,
                       const std::function<std::string(const std::vector<std::string>& of_ranks)>& make) {
  return make({given});
}

}  // namespace

Training::Training(const job::Job& job, const compile::Compiled& compiled, Agree agree, MadeOfAll made_of_all)
    : job_(job),
      compiled_(compiled),
      agree_(std::move(agree)),
      made_of_all_(made_of_all ? std::move(made_of_all) : made_alone),
      executor_(compiled.programs, *compiled.device, compiled.hooks.get()),
      update_program_(executor_.find(graph::Role::once)) {
  if (job.checks.replay) {
    executor_.expect_twice();
  }
  micro_programs_ = executor_.find_calls(graph::Role::repeated, compiled.microbatch_rows);
  evaluate_programs_ = executor_.find_calls(workload::evaluate_function, compiled.evaluation_rows);
  scalars_.reserve(compiled.microbatch_rows.size());
  if (const graph::Op* const op = loss_op(compiled.graph); op != nullptr && op->never_negative) {
    positive_loss_ = op;
  }
  const IdVector<graph::StateId, mesh::Placement>& states = compiled.partition.placements.states;
  has_counts_ = workload::loss_count_of(compiled_.graph).exists();
  varies_ = std::any_of(states.begin(), states.end(),
                        [](const mesh::Placement& placement) { return !placement.varying.empty(); });
  if (compiled.programs.has(partition::after_step_function)) {
    after_step_program_ = executor_.find(partition::after_step_function, 0);
  }
}

void Training::initialize() {
  std::set<graph::StateId> loaded;
  for (const graph::StateId id : compiled_.graph.states.ids()) {
    const bool is_loaded = compiled_.weights != nullptr || compiled_.resumed != nullptr;
    if (is_loaded && compiled_.graph.states[id].kind == graph::StateKind::parameter) {
      loaded.insert({id, compiled_.graph.master_of(id)});
    }
  }
  runtime::initialize(compiled_.graph, job_.seed, executor_, loaded);
  if (compiled_.weights != nullptr && compiled_.resumed == nullptr) {
    checkpoint::load_parameters(compiled_.weights->source(), compiled_.graph, executor_);
  }
}

void Training::begin_at(const checkpoint::Position& first) {
  first_ = first;
  if (first.step > 0 && after_step_program_ && !compiled_.partition.hook_follows(first.step - 1)) {
    unmet_step_ = first.step - 1;
  }
  if (compiled_.device->can_hold_updates()) {
    late_ = agreed(can_be_late() ? 0 : 1, 1) == 0;
  }
}

/// False in three cases: a hook runs on the host, which then has to wait; losses vary between ranks, so that a rank
/// cannot tell from its own loss that a step has failed; an update comes before the norm, which then cannot prevent it.
bool Training::can_be_late() const {
  if (varies_ || compiled_.hooks != nullptr || after_step_program_) {
    return false;
  }
  bool has_norm = false;
  for (const partition::Instruction& instruction : compiled_.programs.programs[update_program_].instructions) {
    has_norm = has_norm || instruction.op->name == "clip_scale";
    if (!has_norm && (instruction.op->name == "adamw" || instruction.op->name == "sgd")) {
      return false;
    }
  }
  return true;
}

double Training::read_scalar(std::string_view state) const {
  const device::TensorView scalar = executor_.state(compiled_.graph.find_state(state));
  return device::read_element(
      device::HostTensor(executor_.host(device::Access::read), scalar, device::Access::read).view(), 0);
}

void Training::feed(std::int64_t step, std::size_t program, std::size_t first) {
  std::int64_t first_sample = checkpoint::samples_after(job_, first_, step);
  for (std::size_t before = 0; before < first; ++before) {
    first_sample += compiled_.microbatch_rows[before];
  }
  scalars_.clear();
  const std::vector<std::int64_t>& rows = executor_.call_rows(program);
  for (std::size_t call = 0; call < rows.size(); ++call) {
    const std::optional<device::TensorView> inputs = executor_.find_input(program, "inputs", call);
    if (inputs) {
      executor_.add_input_seconds(data::feed_training(*compiled_.dataset, job_.seed, first_sample,
                                                      executor_.host(device::Access::write), *inputs,
                                                      *executor_.find_input(program, "targets", call)));
    }
    scalars_.push_back(
        {.seed = job_.seed, .step = step, .first_sample = first_sample, .first_microbatch = first + call == 0});
    first_sample += rows[call];
  }
}

void Training::micro(std::int64_t step, std::size_t program, std::size_t first, bool checked,
                     std::optional<runtime::NonFiniteResult>& bad) {
  feed(step, program, first);
  if (checked) {
    bad = executor_.run_checked(program, scalars_);
  } else if (std::exchange(replays_, false)) {
    run_twice(step, program, first);
  } else {
    executor_.run(program, scalars_);
  }
}

void Training::run_twice(std::int64_t step, std::size_t program, std::size_t first) {
  const auto refill = [&] { feed(step, program, first); };
  if (const partition::Buffer* const differs = executor_.run_twice(program, scalars_, std::cref(refill))) {
    throw Error(
        ErrorCode::damaged,
        fmt::format(
            "step {}: a microbatch that was computed twice has other bits the second time, first in {}: a "
            "processor or a memory of host {} makes mistakes, or that of a rank that this one receives "
            "from; unless something in the job adds up in an order that varies. Nothing of this step is saved. Run the "
            "job again from its newest checkpoint, and without that host if it happens again",
            step + 1, differs->name, host_name()));
  }
}

double Training::read_loss() const {
  const double loss = read_scalar("loss");
  return has_counts_ ? mean_of(loss, read_scalar(workload::loss_count_state)) : loss;
}

double Training::read_kept(std::string_view state, std::size_t slot) const {
  device::TensorView kept = executor_.state(compiled_.graph.find_state(state));
  kept.data = executor_.kept(slot).data();
  return device::read_element(kept, 0);
}

void Training::run_microbatches(std::int64_t step) {
  std::optional<runtime::NonFiniteResult> bad;
  std::size_t first = 0;
  for (const std::size_t program : micro_programs_) {
    micro(step, program, first, false, bad);
    first += executor_.call_rows(program).size();
  }
}

void Training::run_update(std::int64_t step) {
  const device::Guard guard = late_ ? executor_.guard(compiled_.graph.find_state("loss")) : device::Guard{};
  executor_.run(update_program_,
                {.seed = job_.seed, .step = step, .learning_rate = learning_rate(job_.train, step), .guard = guard});
}

double Training::differentiate(std::int64_t step) {
  run_microbatches(step);
  return read_loss();
}

double Training::update(std::int64_t step) {
  run_update(step);
  unmet_step_ = step;
  if (compiled_.partition.hook_follows(step) || step + 1 == job_.train.steps) {
    finish();
  }
  return read_scalar("gradient_norm");
}

bool Training::finish() {
  const bool is_due = after_step_program_ && unmet_step_;
  if (is_due) {
    executor_.run(*after_step_program_, {.seed = job_.seed, .step = *unmet_step_});
  }
  unmet_step_.reset();
  return is_due;
}

StepResult Training::step(std::int64_t step) {
  StepResult result{.loss = differentiate(step), .learning_rate = learning_rate(job_.train, step)};
  check_loss(step, result.loss);
  result.gradient_norm = update(step);
  check_norm(step, result);
  return result;
}

void Training::begin_step(std::int64_t step) {
  run_microbatches(step);
  run_update(step);
  unmet_step_ = step;
  executor_.keep(slot_of(Number::loss, step), executor_.state(compiled_.graph.find_state("loss")));
  executor_.keep(slot_of(Number::gradient_norm, step), executor_.state(compiled_.graph.find_state("gradient_norm")));
  if (has_counts_) {
    executor_.keep(slot_of(Number::loss_count, step), executor_.state(workload::loss_count_of(compiled_.graph)));
  }
  marks_[static_cast<std::size_t>(step % 2)] = executor_.mark();
}

StepResult Training::end_step(std::int64_t step) {
  executor_.reach(marks_[static_cast<std::size_t>(step % 2)]);
  const double loss = read_kept("loss", slot_of(Number::loss, step));
  const StepResult result = {
      .loss =
          has_counts_ ? mean_of(loss, read_kept(workload::loss_count_state, slot_of(Number::loss_count, step))) : loss,
      .gradient_norm = read_kept("gradient_norm", slot_of(Number::gradient_norm, step)),
      .learning_rate = learning_rate(job_.train, step)};
  check_loss(step, result.loss);
  if (!std::isfinite(result.gradient_norm)) {
    executor_.begin_step(step);
    run_microbatches(step);  // again: the next step has overwritten the gradients; its update was held back, too
  }
  check_norm(step, result);
  return result;
}

void Training::check_loss(std::int64_t step, double loss) {
  if (anywhere(!std::isfinite(loss))) {
    executor_.verify_states();
    throw Error(
        ErrorCode::numerics,
        fmt::format(
            "step {}: the loss is {}; the first tensor that is not finite: {}. The parameters are those of the step "
            "before. A smaller [train] learning_rate, a longer warmup or clip > 0 may help",
            step + 1, non_finite_text(loss), first_bad_tensor(step)));
  }
  if (anywhere(is_impossible(loss))) {
    executor_.verify_states();
    throw Error(ErrorCode::numerics,
                fmt::format("step {}: the loss is {:.6g}, and {} is never negative: ranks have computed with different "
                            "data or parameters, or their memory was overwritten. No weights are written. 'shardrun "
                            "verify' finds the first tensor that is wrong",
                            step + 1, loss, positive_loss_->name));
  }
}

void Training::check_norm(std::int64_t step, const StepResult& result) {
  if (anywhere(!std::isfinite(result.gradient_norm))) {
    const graph::State* const bad = bad_state(graph::StateKind::gradient);
    throw Error(ErrorCode::numerics,
                fmt::format("step {}: the loss is {}, but the gradient's norm is {}; the first tensor that is not "
                            "finite: {}. Nothing of "
                            "this step is saved. A smaller [train] learning_rate or a longer warmup may help",
                            step + 1, result.loss, non_finite_text(result.gradient_norm),
                            bad != nullptr ? bad->name : "the norm itself, which overflowed"));
  }
}

bool Training::is_impossible(double loss) const noexcept {
  constexpr double rounding = 1e-3;
  return positive_loss_ != nullptr && loss < -rounding;
}

const graph::State* Training::bad_state(graph::StateKind kind) const {
  const IdVector<graph::StateId, graph::State>& states = compiled_.graph.states;
  graph::StateId first = states.next();
  for (const graph::StateId id : states.ids()) {
    if (states[id].kind == kind && !device::is_finite(executor_.queue(), executor_.state(id))) {
      first = id;
      break;
    }
  }
  const std::int32_t end = states.next().number();
  first = graph::StateId(end - agreed(end - first.number(), end));
  return states.contains(first) ? &states[first] : nullptr;
}

/// The step can be run again because its random numbers and data depend only on its number. Every rank runs to the same
/// point, even if it has found something, so that no rank waits for one that has left.
std::string Training::first_bad_tensor(std::int64_t step) {
  executor_.begin_step(step);
  if (const graph::State* const parameter = bad_state(graph::StateKind::parameter)) {
    return parameter->name + " (a parameter)";
  }
  std::size_t first = 0;
  for (const std::size_t program : micro_programs_) {
    std::optional<runtime::NonFiniteResult> bad;
    micro(step, program, first, true, bad);
    if (std::string place = place_of_first(bad, fmt::format("{}/{}", step, first), "microbatch", first);
        !place.empty()) {
      return place;
    }
    first += executor_.call_rows(program).size();
  }
  return "none when the step was run again";
}

NonFiniteEvaluation Training::why_not_finite(std::int64_t step) {
  if (const graph::State* const parameter = bad_state(graph::StateKind::parameter)) {
    return {.first = parameter->name + " (a parameter)", .is_parameter = true};
  }
  std::int64_t first = 0;
  for (std::size_t call = 0; call < evaluate_programs_.size(); ++call) {
    std::optional<runtime::NonFiniteResult> bad;
    evaluate_call(call, first, true, bad);
    if (std::string place =
            place_of_first(bad, fmt::format("validation/{}/{}", step, call), "validation batch", call + 1);
        !place.empty()) {
      return {.first = std::move(place)};
    }
    first += compiled_.evaluation_rows[call];
  }
  return {.first = "none when the validation was run again"};
}

std::string Training::place_of_first(const std::optional<runtime::NonFiniteResult>& bad, const std::string& key,
                                     std::string_view batch, std::size_t first) const {
  const auto place = [&](const runtime::NonFiniteResult& found) {
    return fmt::format("{} {}", batch, first + static_cast<std::size_t>(found.call()));
  };
  const auto least = [&](const std::vector<std::string>& of_ranks) -> std::string {
    std::optional<std::pair<runtime::NonFiniteResult, std::size_t>> found;
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
      const std::optional<runtime::NonFiniteResult> of_rank = non_finite_of(of_ranks[rank]);
      if (of_rank && (!found || of_rank->order < found->first.order)) {
        found.emplace(*of_rank, rank);
      }
    }
    if (!found) {
      return "";
    }
    const std::string of_rank = of_ranks.size() > 1 ? fmt::format(" of rank {}", found->second) : "";
    return fmt::format("{}{}, {}", found->first.name, of_rank, place(found->first));
  };
  return made_of_all_("not finite/" + key, bad ? text_of(*bad) : "", least);
}

std::optional<double> Training::evaluate(const std::function<bool(std::int64_t batch, std::int64_t batches)>& now_at) {
  if (evaluate_programs_.empty()) {
    return std::nullopt;
  }
  std::int64_t first = 0;
  std::optional<runtime::NonFiniteResult> unchecked;
  for (std::size_t call = 0; call < evaluate_programs_.size(); ++call) {
    if (now_at && !now_at(static_cast<std::int64_t>(call) + 1, static_cast<std::int64_t>(evaluate_programs_.size()))) {
      return std::nullopt;
    }
    evaluate_call(call, first, false, unchecked);
    first += compiled_.evaluation_rows[call];
  }
  return read_loss();
}

void Training::evaluate_call(std::size_t call, std::int64_t first, bool checked,
                             std::optional<runtime::NonFiniteResult>& bad) {
  const std::size_t program = evaluate_programs_[call];
  if (const std::optional<device::TensorView> inputs = executor_.find_input(program, "inputs")) {
    data::feed_evaluation(*compiled_.dataset, first, executor_.host(device::Access::write), *inputs,
                          executor_.input(program, "targets"));
  }
  const device::Scalars scalars = {.seed = job_.seed, .first_sample = first, .first_microbatch = call == 0};
  if (checked) {
    bad = executor_.run_checked(program, scalars);
  } else {
    executor_.run(program, scalars);
  }
}

}  // namespace shardrun::train
