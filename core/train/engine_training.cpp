#include "core/train/engine_training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/data/feed.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"
#include "core/train/steps.h"
#include "core/train/replicas.h"
#include "core/workload/engine.h"

namespace shardrun::train {
namespace {

using plugins::ArrayView;
using plugins::EngineParameter;

/// A view of host memory as `rows` rows of a tensor [all, width], from row `first` on. `width` 0: the tensor is [all].
device::TensorView rows_view(void* data, graph::DType dtype, std::int64_t rows, std::int64_t width, std::int64_t first,
                             std::int64_t all) {
  device::TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rounded = dtype;
  view.rank = width > 0 ? 2 : 1;
  view.shape = {rows, width};
  view.global = {all, width};
  view.origin = {first};
  return view;
}

bool all_finite(const ArrayView& array) {
  const auto* const values = static_cast<const float*>(array.address);
  return std::all_of(values, values + array.elements(), [](float value) { return std::isfinite(value); });
}

/// A part of a parameter of which several ranks hold copies.
struct Copies {
  std::string parameter;
  std::vector<int> holders;
};

}  // namespace

EngineTraining::EngineTraining(const job::Job& job, const compile::Compiled& compiled, RankLink& link)
    : job_(job),
      compiled_(compiled),
      engine_(*compiled.engine),
      link_(link),
      executor_(compiled.programs, *compiled.device) {}

void EngineTraining::initialize() {
  runtime::initialize(compiled_.graph, job_.seed, executor_);
  for (const EngineParameter& parameter : engine_.own()) {
    gradients_.push_back(array_in_arena(parameter, "gradients/", compiled_.graph, executor_));
  }
  running_.emplace(job_, compiled_, link_, executor_);
}

std::int64_t EngineTraining::feed(const Samples& samples) {
  const auto [first, rows] = engine_.rows_of(samples.rows);
  const std::int64_t features = engine_.request.features;
  const bool labels = engine_.data.vocab > 0;
  const std::int64_t width = labels ? 0 : engine_.request.outputs;
  inputs_.resize(static_cast<std::size_t>(rows * features));
  targets_.resize(static_cast<std::size_t>(rows * std::max<std::int64_t>(width, 1)) * sizeof(float));
  const device::TensorView inputs = rows_view(inputs_.data(), graph::DType::f32, rows, features, first, samples.rows);
  const device::TensorView targets =
      rows_view(targets_.data(), labels ? graph::DType::i32 : graph::DType::f32, rows, width, first, samples.rows);
  const device::HostAccess host(executor_.queue());
  if (samples.trains) {
    executor_.add_input_seconds(
        data::feed_training(*compiled_.dataset, job_.seed, samples.first, host, inputs, targets));
  } else {
    data::feed_evaluation(*compiled_.dataset, samples.first, host, inputs, targets);
  }
  return rows;
}

bool EngineTraining::predict(std::int64_t rows) {
  const std::vector<std::int64_t> expected = {rows, engine_.request.outputs};
  bool has_predictions = false;
  const runtime::TimedCall call(&executor_, runtime::Timeline::Call::Kind::engine, "forward");
  ArrayView inputs = engine_.samples(rows);
  inputs.address = inputs_.data();
  running_->instance().forward(inputs, [&](const ArrayView& like) {
    const bool is_empty = like.elements() == 0;
    if (like.shape != expected && !(is_empty && (engine_.plugin.takes_whole_batch() || rows == 0))) {
      throw Error(ErrorCode::plugin, fmt::format("they are [{}], expected [{}]: a row for each of {} samples",
                                                 fmt::join(like.shape, ", "), fmt::join(expected, ", "), rows));
    }
    has_predictions = !is_empty;
    predictions_.resize(static_cast<std::size_t>(like.elements()));
    return predictions_.data();
  });
  return has_predictions;
}

void EngineTraining::add_loss(std::size_t program, bool is_first) {
  const auto write = [&](const char* name, const void* from) {
    device::HostTensor to(executor_.queue(), executor_.input(program, name), device::Access::write);
    std::memcpy(to.bytes().data(), from, to.bytes().size());
    to.store();
  };
  write(workload::predictions_input, predictions_.data());
  write(workload::targets_input, targets_.data());
  executor_.run(program, {.seed = job_.seed, .first_microbatch = is_first});
  has_losses_ = true;
}

/// Calls backward. The first microbatch's gradients are written to the arena directly.
void EngineTraining::backward(const ArrayView& gradient, bool is_first) {
  const runtime::TimedCall call(&executor_, runtime::Timeline::Call::Kind::engine, "backward");
  if (is_first) {
    return running_->instance().backward(gradient, gradients_);
  }
  latest_.resize(gradients_.size());
  std::vector<plugins::NamedArray> latest = gradients_;
  for (std::size_t i = 0; i < latest.size(); ++i) {
    latest_[i].resize(static_cast<std::size_t>(latest[i].array.elements()));
    latest[i].array.address = latest_[i].data();
  }
  running_->instance().backward(gradient, latest);
  for (std::size_t i = 0; i < latest.size(); ++i) {
    auto* const sum = static_cast<float*>(gradients_[i].array.address);
    std::transform(latest_[i].begin(), latest_[i].end(), sum, sum, std::plus<>());
  }
}

void EngineTraining::microbatch(const Samples& samples, bool is_first) {
  const std::int64_t rows = feed(samples);
  if (!predict(rows)) {
    return backward({.shape = {0, engine_.request.outputs}}, is_first);
  }
  const std::size_t program = executor_.find("micro", rows);
  add_loss(program, !has_losses_);
  const device::HostTensor gradient(executor_.queue(), executor_.output(program, workload::gradient_output),
                                    device::Access::read);
  backward({.shape = {rows, engine_.request.outputs}, .address = gradient.bytes().data()}, is_first);
}

double EngineTraining::differentiate(std::int64_t step) {
  std::int64_t first = step * job_.data.batch;
  bool is_first = true;
  for (const std::int64_t rows : workload::microbatch_rows(job_.data.batch, job_.data.microbatches)) {
    microbatch({.first = first, .rows = rows, .trains = true}, std::exchange(is_first, false));
    first += rows;
  }
  std::vector<double> norm_squared = {squares_of_gradients()};
  const double loss = loss_of_all(norm_squared);
  write_scalar("norm_squared", norm_squared[0]);
  return loss;
}

double EngineTraining::update(std::int64_t step) {
  executor_.run(executor_.find(graph::Role::once),
                {.seed = job_.seed, .step = step, .learning_rate = learning_rate(job_.train, step)});
  return read_scalar("gradient_norm");
}

StepResult EngineTraining::step(std::int64_t step) {
  StepResult result{.loss = differentiate(step), .learning_rate = learning_rate(job_.train, step)};
  if (!std::isfinite(result.loss)) {
    executor_.verify_states();
    throw Error(ErrorCode::numerics,
                fmt::format("step {}: the loss of the engine's predictions is {}. The parameters are those of the step "
                            "before. A smaller [train] learning_rate, a longer warmup or clip > 0 may help",
                            step + 1, std::isnan(result.loss) ? "NaN" : "infinite"));
  }
  if (const double norm_squared = read_scalar("norm_squared"); !std::isfinite(norm_squared)) {
    executor_.verify_states();
    throw Error(
        ErrorCode::numerics,
        fmt::format("step {}: the loss is {}, but the norm of the gradients is {}{}. A smaller [train] "
                    "learning_rate or a longer warmup may help",
                    step + 1, result.loss, std::isnan(norm_squared) ? "NaN" : "infinite", first_bad_gradient()));
  }
  result.gradient_norm = update(step);
  return result;
}

std::string EngineTraining::first_bad_gradient() const {
  for (const plugins::NamedArray& gradient : gradients_) {
    if (!all_finite(gradient.array)) {
      return fmt::format("; the first that is not finite on rank {} is that of {}", engine_.request.rank,
                         gradient.name);
    }
  }
  return "";
}

double EngineTraining::squares_of_gradients() {
  if (!compiled_.programs.has(std::string(workload::norm_function))) {
    return 0;
  }
  executor_.run(executor_.find(workload::norm_function, 0), {.seed = job_.seed});
  return read_scalar("norm_squared");
}

/// Returns the loss of the batch and stores it in the state `loss`; sums the numbers of `more` over the ranks. The
/// losses of ranks with parts of the batch add up. If every rank gets the whole batch, those with predictions have the
/// same loss, and it is returned.
double EngineTraining::loss_of_all(std::vector<double>& more) {
  more.push_back(has_losses_ ? read_scalar("loss") : 0);
  more.push_back(has_losses_ ? 1 : 0);
  has_losses_ = false;
  running_->ranks().add_up(more);
  const double ranks = more.back();
  more.pop_back();
  const double sum = more.back();
  more.pop_back();
  if (ranks == 0) {
    throw Error(ErrorCode::plugin, fmt::format("engine '{}': no rank has predictions", job_.engine.name));
  }
  const double loss = engine_.plugin.takes_whole_batch() ? sum / ranks : sum;
  write_scalar("loss", loss);
  return loss;
}

std::optional<double> EngineTraining::evaluate(
    const std::function<bool(std::int64_t batch, std::int64_t batches)>& now_at) {
  const std::int64_t samples = compiled_.dataset->evaluation_samples();
  if (samples == 0) {
    return std::nullopt;
  }
  const std::int64_t batch = job_.data.eval_batch > 0
                                 ? job_.data.eval_batch
                                 : workload::microbatch_rows(job_.data.batch, job_.data.microbatches).front();
  const std::vector<std::int64_t> calls = workload::evaluation_rows(samples, batch);
  std::int64_t first = 0;
  for (std::size_t call = 0; call < calls.size(); ++call) {
    if (now_at && !now_at(static_cast<std::int64_t>(call) + 1, static_cast<std::int64_t>(calls.size()))) {
      has_losses_ = false;
      return std::nullopt;
    }
    const std::int64_t rows = feed({.first = first, .rows = calls[call]});
    if (predict(rows)) {
      add_loss(executor_.find(workload::evaluate_function, rows), !has_losses_);
    }
    first += calls[call];
  }
  std::vector<double> none;
  return loss_of_all(none);
}

NonFiniteEvaluation EngineTraining::why_not_finite(std::int64_t /*step*/) {
  std::string own;
  for (const EngineParameter& parameter : engine_.parameters[engine_.request.rank]) {
    if (own.empty() && !all_finite(array_in_arena(parameter, "", compiled_.graph, executor_).array)) {
      own = parameter.name;
    }
  }
  std::vector<double> bad(engine_.parameters.size());  // by rank
  bad[engine_.request.rank] = own.empty() ? 0 : 1;
  running_->ranks().add_up(bad);
  const auto rank = std::ranges::find(bad, 1.0);
  if (rank == bad.end()) {
    return {.first = "what the engine predicts, or its loss"};
  }
  const auto number = static_cast<std::size_t>(rank - bad.begin());
  return {.first = number == engine_.request.rank ? fmt::format("{} (a parameter) of rank {}", own, number)
                                                  : fmt::format("a parameter of rank {}", number),
          .is_parameter = true};
}

/// Every rank gets all ranks' hashes by a sum, to which only one rank adds each hash. A double holds 52 bits of it.
void EngineTraining::check_copies(std::int64_t step) {
  const std::size_t world_size = engine_.parameters.size();
  std::vector<Copies> copies;
  std::vector<double> hashes;
  for (const std::vector<EngineParameter>& of_rank : engine_.parameters) {
    for (const EngineParameter& parameter : of_rank) {
      const std::vector<std::uint32_t> holders = engine_.holders_of(parameter);
      if (holders.size() > 1 && engine_.parameters[holders.front()].data() == of_rank.data()) {
        copies.push_back({parameter.name, {holders.begin(), holders.end()}});
        hashes.resize(hashes.size() + world_size);
        if (std::ranges::find(holders, engine_.request.rank) != holders.end()) {
          hashes[hashes.size() - world_size + engine_.request.rank] = hash_of(parameter);
        }
      }
    }
  }
  if (copies.empty()) {
    return;
  }
  running_->ranks().add_up(hashes);
  for (std::size_t c = 0; c < copies.size(); ++c) {
    std::vector<std::uint64_t> of_holders;
    for (const int holder : copies[c].holders) {
      of_holders.push_back(static_cast<std::uint64_t>(hashes[c * world_size + static_cast<std::size_t>(holder)]));
    }
    if (std::ranges::adjacent_find(of_holders, std::not_equal_to<>()) != of_holders.end()) {
      throw Error(
          ErrorCode::numerics,
          fmt::format("after step {} the copies of parameter {} differ: {}. The engine's backward has to return "
                      "the same gradient on all ranks that hold a parameter: all_reduce it",
                      step, copies[c].parameter, dissent_of(copies[c].holders, of_holders).text));
    }
  }
}

double EngineTraining::hash_of(const EngineParameter& parameter) const {
  const ArrayView values = array_in_arena(parameter, "", compiled_.graph, executor_).array;
  const std::uint64_t hash = hash_name({static_cast<const char*>(values.address), values.bytes()});
  return static_cast<double>(hash >> 12U);
}

bool EngineTraining::finish() {
  running_->ranks().require_no_messages();
  return false;
}

bool EngineTraining::is_impossible(double loss) const noexcept {
  constexpr double rounding = 1e-3;
  return loss < -rounding;
}

double EngineTraining::read_scalar(std::string_view state) const {
  const device::TensorView scalar = executor_.state(compiled_.graph.find_state(state));
  return device::read_element(device::HostTensor(executor_.queue(), scalar, device::Access::read).view(), 0);
}

void EngineTraining::write_scalar(std::string_view state, double value) const {
  device::HostTensor scalar(executor_.queue(), executor_.state(compiled_.graph.find_state(state)),
                            device::Access::write);
  device::write_elements(scalar.view(), 0, std::span(&value, 1));
  scalar.store();
}

}  // namespace shardrun::train
