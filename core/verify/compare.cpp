#include "core/verify/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/device/elements.h"
#include "core/workload/program.h"

namespace shardrun::verify {
namespace {

/// The root mean square below which float32 has no more digits to hold: squares of gradients get there.
constexpr double smallest = 1e-30;

double root_of_mean(double sum, std::size_t count) { return std::sqrt(sum / static_cast<double>(count)); }

/// Half a unit in the last place of a float of this size: the largest error of rounding to nearest.
double half_of_last_place(double value) {
  int exponent = 0;
  (void)std::frexp(value, &exponent);
  return std::ldexp(0.5,
                    std::max(exponent, std::numeric_limits<float>::min_exponent) - std::numeric_limits<float>::digits);
}

}  // namespace

Comparison::Comparison(const Workload& workload, std::int64_t ranks, int threads, Selection selection,
                       std::function<bool()> stops, Meter* meter)
    : workload_(workload),
      mixed_(
          std::ranges::any_of(workload.graph.states, [](const graph::State& state) { return state.master.exists(); })),
      ranks_(ranks),
      selection_(std::move(selection)),
      reference_(workload, threads, std::move(stops), meter),
      before_(workload.graph.states.size()) {
  for (const graph::StateId s : workload.graph.states.ids()) {
    if (workload.graph.states[s].kind == graph::StateKind::gradient) {
      gradients_.push_back(s);
    }
  }
}

void Comparison::add(std::int64_t step, Moment moment, const SnapshotOf& snapshot_of) {
  const Gathered run = gather(workload_.graph, ranks_, step, snapshot_of, selection_, report_);
  switch (moment) {
    case Moment::begin: begin(step, run); break;
    case Moment::gradients: gradients(step, run); break;
    case Moment::end: end(step, run); break;
    case Moment::evaluation:
      reference_.evaluate();
      compare_losses(What::evaluation, step, run);
      break;
  }
}

void Comparison::begin(std::int64_t step, const Gathered& run) {
  if (step == 0) {
    reference_.initialize();
  }
  for (const graph::StateId s : run.ids()) {
    if (!run[s]) {
      continue;
    }
    // The state at the end of a step is the next step's start.
    const double size = root_mean_square(s);
    compare(s, step == 0 ? What::initial : What::update, step, *run[s], {size, size}, 0);
    load(s, *run[s]);
    before_[s] = run[s]->values;
  }
}

void Comparison::gradients(std::int64_t step, const Gathered& run) {
  reference_.differentiate(step);
  compare_losses(What::loss, step, run);
  double largest = smallest;
  for (const graph::StateId s : gradients_) {
    largest = std::max(largest, root_mean_square(s));
  }
  for (const graph::StateId s : gradients_) {
    const double size = root_mean_square(s);
    const bool zero = size < zero_share * largest;
    compare(s, What::gradient, step, *run[s], {size, zero ? zero_floor * largest : size},
            mixed_ ? mixed_gradient_tolerance : gradient_tolerance);
    load(s, *run[s]);
  }
}

void Comparison::compare_losses(What what, std::int64_t step, const Gathered& run) {
  const double tolerance = mixed_ ? mixed_loss_tolerance : gradient_tolerance;
  compare_metric("loss", what, step, run, tolerance);
  if (workload::loss_count_of(workload_.graph).exists()) {
    compare_metric(workload::loss_count_state.data(), what, step, run, tolerance);
  }
}

void Comparison::end(std::int64_t step, const Gathered& run) {
  reference_.update(step);
  for (const graph::StateId s : run.ids()) {
    if (!run[s] || workload_.graph.states[s].kind == graph::StateKind::metric) {
      continue;
    }
    if (const graph::StateId master = workload_.graph.states[s].master; master.exists() && run[master]) {
      load(s, *run[master]);
      device::round_elements(graph::DType::bf16, reference_.state(s));
      const double size = root_mean_square(s);
      compare(s, What::update, step, *run[s], {size, size}, 0);
    } else if (workload_.graph.states[s].kind == graph::StateKind::output) {
      const double size = root_mean_square(s);
      compare(s, What::update, step, *run[s], {size, size}, gradient_tolerance);
    } else {
      compare(s, What::update, step, *run[s], scale_of_update(s), update_tolerance);
    }
    load(s, *run[s]);
  }
  if (workload_.trains()) {
    compare_metric("gradient_norm", What::gradient_norm, step, run, update_tolerance);
  }
  report_.count_step();
}

/// The change, and the part of it that is lost to rounding at the size of the state, before or after it.
Comparison::Scale Comparison::scale_of_update(graph::StateId state) {
  const std::span<const double> after = reference_.state(state);
  const std::vector<double>& before = before_[state];
  double change = 0;
  double rounding = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const double lost = half_of_last_place(std::max(std::abs(before[i]), std::abs(after[i])));
    change += (after[i] - before[i]) * (after[i] - before[i]);
    rounding += lost * lost;
  }
  const graph::State& described = workload_.graph.states[state];
  const bool parameter =
      described.kind == graph::StateKind::parameter ||
      (described.of_parameter.exists() && workload_.graph.master_of(described.of_parameter) == state);
  const double roundings = parameter ? parameter_roundings : state_roundings;
  const double expected = root_of_mean(change, after.size());
  return {expected, expected + roundings * root_of_mean(rounding, after.size()) / update_tolerance};
}

void Comparison::compare(graph::StateId state, What what, std::int64_t step, const Whole& run, Scale scale,
                         double tolerance) {
  if (!is_selected(selection_, state)) {
    return;
  }
  const graph::State& described = workload_.graph.states[state];
  const graph::State& named = what == What::gradient && described.of_parameter.exists()
                                  ? workload_.graph.states[described.of_parameter]
                                  : described;
  const std::span<const double> expected = reference_.state(state);
  double sum = 0;
  std::size_t worst = 0;
  double largest = -1;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double off = run.values[i] - expected[i];
    sum += off * off;
    if (!(std::abs(off) <= largest) && !std::isnan(largest)) {
      largest = std::abs(off);
      worst = i;
    }
  }
  const double difference = root_of_mean(sum, expected.size());
  report_.add({.tensor = named.name,
               .state = described.name,
               .what = what,
               .relative = difference / std::max(scale.judged, smallest),
               .tolerance = tolerance,
               .unfloored = difference / std::max(scale.expected, smallest),
               .step = step + 1,
               .values = static_cast<std::int64_t>(expected.size()),
               .ranks = ranks_of(run, described.type.shape, worst),
               .note = fmt::format("element {} is {:.9g}, should be {:.9g}", index_text(described.type.shape, worst),
                                   run.values[worst], expected[worst])});
}

void Comparison::compare_metric(const char* name, What what, std::int64_t step, const Gathered& run, double tolerance) {
  const graph::StateId state = workload_.graph.find_state(name);
  const double size = root_mean_square(state);
  compare(state, what, step, *run[state], {size, size}, tolerance);
}

void Comparison::load(graph::StateId state, const Whole& run) {
  std::copy(run.values.begin(), run.values.end(), reference_.state(state).begin());
}

double Comparison::root_mean_square(graph::StateId state) {
  const std::span<const double> values = reference_.state(state);
  double sum = 0;
  for (const double value : values) {
    sum += value * value;
  }
  return root_of_mean(sum, values.size());
}

}  // namespace shardrun::verify
