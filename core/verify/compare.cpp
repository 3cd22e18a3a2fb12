#include "core/verify/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shardrun::verify {
namespace {

/// The root mean square below which float32 has no more digits to hold: squares of gradients get there.
constexpr double smallest = 1e-30;

double norm(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) {
    sum += value * value;
  }
  return std::sqrt(sum);
}

}  // namespace

Comparison::Comparison(const Workload& workload, std::int64_t ranks, int threads)
    : workload_(workload), ranks_(ranks), reference_(workload, threads), norms_before_(workload.graph.states.size()) {}

void Comparison::add(std::int64_t step, Moment moment, const SnapshotOf& snapshot_of) {
  const Gathered run = gather(workload_.graph, ranks_, step, snapshot_of, report_);
  switch (moment) {
    case Moment::begin: begin(step, run); break;
    case Moment::gradients: gradients(step, run); break;
    case Moment::end: end(step, run); break;
    case Moment::evaluation:
      reference_.evaluate();
      compare_metric("loss", What::evaluation, step, run, gradient_tolerance);
      break;
  }
}

void Comparison::begin(std::int64_t step, const Gathered& run) {
  if (step == 0) {
    reference_.initialize();
  }
  for (std::size_t s = 0; s < run.size(); ++s) {
    if (!run[s]) {
      continue;
    }
    // What one step left is what the next starts from.
    compare(s, step == 0 ? What::initial : What::update, step, *run[s], norm_of(s), 0);
    load(s, *run[s]);
    norms_before_[s] = norm_of(s);
  }
}

void Comparison::gradients(std::int64_t step, const Gathered& run) {
  reference_.differentiate(step);
  compare_metric("loss", What::loss, step, run, gradient_tolerance);
  std::vector<std::size_t> gradients;
  double largest = smallest;
  for (std::size_t s = 0; s < run.size(); ++s) {
    if (workload_.graph.states[s].kind == graph::StateKind::gradient) {
      gradients.push_back(s);
      const auto elements = static_cast<double>(run[s]->values.size());
      largest = std::max(largest, norm_of(s) / std::sqrt(elements));
    }
  }
  for (const std::size_t s : gradients) {
    const double floor = gradient_floor * largest * std::sqrt(static_cast<double>(run[s]->values.size()));
    compare(s, What::gradient, step, *run[s], std::max(norm_of(s), floor), gradient_tolerance);
    load(s, *run[s]);
  }
}

void Comparison::end(std::int64_t step, const Gathered& run) {
  reference_.update(step);
  for (std::size_t s = 0; s < run.size(); ++s) {
    if (run[s] && workload_.graph.states[s].kind != graph::StateKind::metric) {
      // What cancels is as exact as what was there before.
      const double scale = std::max(norm_of(s), norms_before_[s]);
      compare(s, What::update, step, *run[s], scale, update_tolerance);
      load(s, *run[s]);
    }
  }
  if (!workload_.microbatch_rows.empty()) {
    compare_metric("gradient_norm", What::gradient_norm, step, run, update_tolerance);
  }
  report_.count_step();
}

void Comparison::compare(std::size_t state, What what, std::int64_t step, const Whole& run, double scale,
                         double tolerance) {
  const graph::State& described = workload_.graph.states[state];
  const graph::State& named = what == What::gradient && described.of_parameter >= 0
                                  ? workload_.graph.states[static_cast<std::size_t>(described.of_parameter)]
                                  : described;
  const std::span<const double> expected = reference_.state(static_cast<graph::StateId>(state));
  double sum = 0;
  std::size_t worst = 0;
  double largest = -1;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = run.values[i] - expected[i];
    sum += difference * difference;
    if (!(std::abs(difference) <= largest) && !std::isnan(largest)) {
      largest = std::abs(difference);
      worst = i;
    }
  }
  const double floor = smallest * std::sqrt(static_cast<double>(expected.size()));
  report_.add({.tensor = named.name,
               .what = what,
               .relative = std::sqrt(sum) / std::max(scale, floor),
               .tolerance = tolerance,
               .step = step + 1,
               .ranks = ranks_of(run, described.type.shape, worst),
               .note = fmt::format("element {} is {:.9g}, should be {:.9g}", index_text(described.type.shape, worst),
                                   run.values[worst], expected[worst])});
}

void Comparison::compare_metric(const char* name, What what, std::int64_t step, const Gathered& run, double tolerance) {
  const auto state = static_cast<std::size_t>(workload_.graph.find_state(name));
  compare(state, what, step, *run[state], norm_of(state), tolerance);
}

void Comparison::load(std::size_t state, const Whole& run) {
  std::copy(run.values.begin(), run.values.end(), reference_.state(static_cast<graph::StateId>(state)).begin());
}

double Comparison::norm_of(std::size_t state) { return norm(reference_.state(static_cast<graph::StateId>(state))); }

}  // namespace shardrun::verify
