#include "core/verify/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/device/elements.h"
#include "core/workload/program.h"

namespace shardrun::verify {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

/// Of the elements of `values`, less those of `others`. Infinite if one is not a number.
Size size_of(std::span<const double> values, std::span<const double> others, std::size_t& worst) {
  double sum = 0;
  double largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double off = std::abs(values[i] - others[i]);
    if (std::isnan(off)) {
      worst = i;
      return {infinite, infinite};
    }
    sum += off * off;
    if (off > largest) {
      largest = off;
      worst = i;
    }
  }
  return {std::sqrt(sum / static_cast<double>(values.size())), largest};
}

double root_mean_square(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) {
    sum += value * value;
  }
  return std::sqrt(sum / static_cast<double>(values.size()));
}

}  // namespace

Comparison::Comparison(const Workload& workload, std::int64_t ranks, std::int64_t steps, int threads,
                       Selection selection, std::function<bool()> stops, Meter* meter)
    : workload_(workload),
      ranks_(ranks),
      steps_(steps),
      rounded_((least_rounded + steps - 1) / std::max<std::int64_t>(steps, 1)),
      selection_(std::move(selection)),
      reference_(workload, threads, std::move(stops), meter),
      latest_(workload.graph.states.size()),
      roundings_(workload.graph.states.size()) {}

void Comparison::add(std::int64_t step, Moment moment, const SnapshotOf& snapshot_of) {
  const Gathered run = gather(workload_.graph, ranks_, step, snapshot_of, selection_, report_);
  switch (moment) {
    case Moment::begin: begin(step, run); break;
    case Moment::gradients: gradients(step, run); break;
    case Moment::end: end(step, run); break;
    case Moment::evaluation:
      compute([&] { reference_.evaluate(); });
      compare_losses(What::evaluation, step, run);
      break;
  }
}

void Comparison::compute(const Calls& calls) {
  const std::vector<std::vector<double>> before = states();
  calls();
  const std::vector<std::vector<double>> exact = states();
  const auto load_all = [&](const std::vector<std::vector<double>>& values) {
    for (const graph::StateId s : workload_.graph.states.ids()) {
      load(s, values[s.index()]);
    }
  };
  std::ranges::fill(latest_, Size());
  reference_.round(true);
  for (std::int64_t i = 0; i < rounded_; ++i) {
    load_all(before);
    calls();
    for (const graph::StateId s : workload_.graph.states.ids()) {
      std::size_t worst = 0;
      if (const Size made = size_of(reference_.state(s), exact[s.index()], worst); std::isfinite(made.mean)) {
        latest_[s] = larger(latest_[s], made);  // one that is not finite would excuse every error
      }
    }
  }
  reference_.round(false);
  load_all(exact);
}

std::vector<std::vector<double>> Comparison::states() {
  std::vector<std::vector<double>> values;
  for (const graph::StateId s : workload_.graph.states.ids()) {
    const std::span<const double> state = reference_.state(s);
    values.emplace_back(state.begin(), state.end());
  }
  return values;
}

void Comparison::begin(std::int64_t step, const Gathered& run) {
  if (step == 0) {
    reference_.initialize();
  }
  for (const graph::StateId s : run.ids()) {
    if (run[s]) {
      // The state at the end of a step is the next step's start.
      compare(s, step == 0 ? What::initial : What::update, step, run, true);
      load(s, run[s]->values);
    }
  }
}

void Comparison::gradients(std::int64_t step, const Gathered& run) {
  compute([&] { reference_.differentiate(step); });
  compare_losses(What::loss, step, run);
  for (const graph::StateId s : run.ids()) {
    if (run[s] && workload_.graph.states[s].kind == graph::StateKind::gradient) {
      compare(s, What::gradient, step, run);
      load(s, run[s]->values);
    }
  }
}

void Comparison::compare_losses(What what, std::int64_t step, const Gathered& run) {
  compare(workload_.graph.find_state("loss"), what, step, run);
  if (const graph::StateId count = workload::loss_count_of(workload_.graph); count.exists()) {
    compare(count, what, step, run);
  }
}

void Comparison::end(std::int64_t step, const Gathered& run) {
  compute([&] { reference_.update(step); });
  for (const graph::StateId s : run.ids()) {
    const graph::State& state = workload_.graph.states[s];
    if (!run[s] || state.kind == graph::StateKind::metric) {
      continue;
    }
    const bool is_rounded_master = state.master.exists() && run[state.master];
    if (is_rounded_master) {
      load(s, run[state.master]->values);
      device::round_elements(state.type.dtype, reference_.state(s));
    }
    compare(s, What::update, step, run, is_rounded_master);
    load(s, run[s]->values);
  }
  if (workload_.trains()) {
    compare(workload_.graph.find_state("gradient_norm"), What::gradient_norm, step, run);
  }
  report_.count_step();
}

void Comparison::compare(graph::StateId state, What what, std::int64_t step, const Gathered& run, bool exact) {
  if (!is_selected(selection_, state)) {
    return;
  }
  const graph::State& described = workload_.graph.states[state];
  const graph::State& named = what == What::gradient && described.of_parameter.exists()
                                  ? workload_.graph.states[described.of_parameter]
                                  : described;
  const Whole& whole = *run[state];
  const std::span<const double> expected = reference_.state(state);
  std::size_t worst = 0;
  const Size error = size_of(whole.values, expected, worst);
  Size rounding;
  if (!exact) {
    roundings_[state] = larger(roundings_[state], latest_[state]);
    rounding = larger(roundings_[state], rounding_of(described.type.dtype, expected));
  }
  report_.add({.tensor = named.name,
               .state = described.name,
               .what = what,
               .error = error,
               .rounding = rounding,
               .expected = root_mean_square(expected),
               .step = step + 1,
               .values = static_cast<std::int64_t>(expected.size()),
               .ranks = ranks_of(whole, described.type.shape, worst),
               .note = fmt::format("element {} is {:.9g}, should be {:.9g}", index_text(described.type.shape, worst),
                                   whole.values[worst], expected[worst])});
}

void Comparison::load(graph::StateId state, std::span<const double> values) {
  std::ranges::copy(values, reference_.state(state).begin());
}

}  // namespace shardrun::verify
