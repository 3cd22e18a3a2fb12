#include "core/verify/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "core/device/elements.h"
#include "core/workload/program.h"

namespace shardrun::verify {
namespace {

std::vector<std::int64_t> indices_of(const std::vector<std::int64_t>& shape, std::size_t element) {
  std::vector<std::int64_t> indices(shape.size());
  auto rest = static_cast<std::int64_t>(element);
  for (std::size_t d = shape.size(); d-- > 0;) {
    indices[d] = rest % shape[d];
    rest /= shape[d];
  }
  return indices;
}

/// The indices of an element in each dimension, as text: "[3, 0]".
std::string index_text(const std::vector<std::int64_t>& shape, std::size_t element) {
  return fmt::format("[{}]", fmt::join(indices_of(shape, element), ", "));
}

/// The sequence whose logits the state holds; null for a state without logits.
const Workload::Sequence* sequence_of(const Workload& workload, const graph::State& state) {
  const auto found = std::ranges::find(workload.sequences, state.name, &Workload::Sequence::name);
  return found == workload.sequences.end() ? nullptr : &*found;
}

/// The position of an element of a sequence's logits.
std::int64_t position_of(const Workload::Sequence& sequence, const graph::State& state, std::size_t element) {
  return sequence.kept[static_cast<std::size_t>(indices_of(state.type.shape, element)[0])];
}

/// Adds the first position that differs, and the prompt's line and id, to the difference of a sequence's logits.
void name_prompt(const Workload::Sequence& sequence, Difference& difference) {
  difference.line = sequence.line;
  difference.id = sequence.id;
  if (difference.position) {
    difference.note += fmt::format("; the first position that differs is {}", *difference.position);
    difference.note += sequence.line > 0 ? fmt::format("; the prompt is in line {}", sequence.line) : "";
    difference.note += sequence.id.empty() ? "" : fmt::format(", with the id {}", sequence.id);
  }
}

/// An element as text, such as "element [3, 0]", or "logit 7 at position 12" in the logits of a sequence.
std::string element_text(const Workload& workload, const graph::State& state, std::size_t element) {
  if (const Workload::Sequence* const sequence = sequence_of(workload, state)) {
    return fmt::format("logit {} at position {}", indices_of(state.type.shape, element)[1],
                       position_of(*sequence, state, element));
  }
  return "element " + index_text(state.type.shape, element);
}

bool same_bits(double a, double b) noexcept { return std::memcmp(&a, &b, sizeof(double)) == 0; }

/// The relative difference of two values that have different bits. It is never 0.
double distance(double a, double b) noexcept {
  const double size = std::max(std::abs(a), std::abs(b));
  const double relative = std::abs(a - b) / size;
  return std::isnan(relative) ? 1 : std::max(relative, std::numeric_limits<double>::epsilon());
}

void add_part(const Part& part, const Workload& workload, const graph::State& state, std::int32_t rank, Whole& whole,
              Difference& replica) {
  for (std::size_t local = 0; local < part.values.size(); ++local) {
    const auto at =
        static_cast<std::size_t>(part.box.index_in_whole(state.type.shape, static_cast<std::int64_t>(local)));
    const double value = part.values[local];
    if (whole.first[at] < 0) {
      whole.first[at] = rank;
      whole.values[at] = value;
      continue;
    }
    if (same_bits(whole.values[at], value)) {
      continue;
    }
    if (const Workload::Sequence* const sequence = sequence_of(workload, state)) {
      const std::int64_t position = position_of(*sequence, state, at);
      replica.position = std::min(replica.position.value_or(position), position);
    }
    if (distance(whole.values[at], value) > replica.error.mean) {
      replica.error.mean = replica.error.largest = distance(whole.values[at], value);
      replica.ranks = {whole.first[at], rank};
      replica.note = fmt::format("{} is {} on rank {}, {} on rank {}", element_text(workload, state, at),
                                 whole.values[at], whole.first[at], value, rank);
    }
  }
  whole.boxes[static_cast<std::size_t>(rank)] = part.box;
}

void check_coverage(const graph::State& state, const Whole& whole, Difference& replica) {
  const auto missing = std::count(whole.first.begin(), whole.first.end(), -1);
  if (missing > 0) {
    const auto at =
        static_cast<std::size_t>(std::find(whole.first.begin(), whole.first.end(), -1) - whole.first.begin());
    replica.error = {1, 1};
    replica.ranks = {};
    replica.note = fmt::format("no rank holds {} of its {} elements, the first at {}", missing, whole.first.size(),
                               index_text(state.type.shape, at));
  }
}

/// The size of the differences between `values` and `others`; infinite if one of them is NaN. Sets `worst` to the index
/// of the largest.
Size size_of(std::span<const double> values, std::span<const double> others, std::size_t& worst) {
  double sum = 0;
  double largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double off = std::abs(values[i] - others[i]);
    if (std::isnan(off)) {
      worst = i;
      largest = std::numeric_limits<double>::infinity();
      return {largest, largest};
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

/// The ranks whose parts contain an element.
std::vector<int> ranks_of(const Whole& whole, const std::vector<std::int64_t>& shape, std::size_t element) {
  const std::vector<std::int64_t> indices = indices_of(shape, element);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < whole.boxes.size(); ++rank) {
    if (whole.boxes[rank].contains(indices)) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

/// Assembles each state from the parts of all ranks. For every selected state, adds a result of kind `replica` to the
/// report: whether ranks that hold the same element have equal bits, and whether each element is on at least one rank.
Gathered gather(const Workload& workload, std::int64_t ranks, std::int64_t step, const SnapshotOf& snapshot_of,
                const Selection& selection, Report& report) {
  const graph::Graph& graph = workload.graph;
  Gathered gathered(graph.states.size());
  IdVector<graph::StateId, Difference> replicas(graph.states.size());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const Snapshot snapshot = snapshot_of(rank);
    for (const graph::StateId s : graph.states.ids()) {
      if (!snapshot.parts[s]) {
        continue;
      }
      const graph::State& state = graph.states[s];
      if (!gathered[s]) {
        const auto elements = static_cast<std::size_t>(graph::element_count(state.type));
        const std::vector<std::int64_t> zeros(state.type.shape.size());
        gathered[s] = Whole{.values = std::vector<double>(elements),
                            .first = std::vector<std::int32_t>(elements, -1),
                            .boxes = std::vector<mesh::Box>(static_cast<std::size_t>(ranks), {zeros, zeros})};
        replicas[s] = {.tensor = state.name, .what = What::replica, .expected = 1, .step = step + 1};
      }
      add_part(*snapshot.parts[s], workload, state, static_cast<std::int32_t>(rank), *gathered[s], replicas[s]);
    }
  }
  for (const graph::StateId s : graph.states.ids()) {
    if (gathered[s] && is_selected(selection, s)) {
      check_coverage(graph.states[s], *gathered[s], replicas[s]);
      if (const Workload::Sequence* const sequence = sequence_of(workload, graph.states[s])) {
        name_prompt(*sequence, replicas[s]);
      }
      report.add(std::move(replicas[s]));
    }
  }
  return gathered;
}

/// The first position whose logits differ by more than `limit` times `rounding`; -1 if there is none. If the logits of
/// all positions, taken as one tensor, exceed the limit, there is one.
std::int64_t first_position(const Workload::Sequence& sequence, std::span<const double> found,
                            std::span<const double> expected, const Size& rounding) {
  const std::size_t row = expected.size() / sequence.kept.size();
  for (std::size_t r = 0; r < sequence.kept.size(); ++r) {
    std::size_t worst = 0;
    const Size error = size_of(found.subspan(r * row, row), expected.subspan(r * row, row), worst);
    if (!Difference{.tensor = {}, .error = error, .rounding = rounding}.passed()) {
      return sequence.kept[r];
    }
  }
  return -1;
}

}  // namespace

Comparison::Comparison(const Workload& workload, std::int64_t ranks, int threads, Selection selection,
                       std::function<bool()> stops, Meter* meter)
    : workload_(workload),
      ranks_(ranks),
      selection_(std::move(selection)),
      reference_(workload, threads, std::move(stops), meter),
      latest_(workload.graph.states.size()),
      roundings_(workload.graph.states.size()) {}

void Comparison::add(std::int64_t step, Moment moment, const SnapshotOf& snapshot_of) {
  const Gathered run = gather(workload_, ranks_, step, snapshot_of, selection_, report_);
  switch (moment) {
    case Moment::begin: begin(step, run); break;
    case Moment::gradients:
      judge(step, moment, run, gradient_calls(workload_, step), [&] { reference_.differentiate(step); });
      break;
    case Moment::end:
      judge(step, moment, run, {update_call(workload_, step)}, [&] { reference_.update(step); });
      report_.count_step();
      break;
    case Moment::evaluation:
      judge(step, moment, run, evaluation_calls(workload_), [&] { reference_.evaluate(); });
      break;
  }
}

void Comparison::begin(std::int64_t step, const Gathered& run) {
  if (step == 0) {
    reference_.initialize();
  }
  for (const graph::StateId s : run.ids()) {
    if (run[s]) {
      // The states at the start of a step must be those at the end of the step before.
      if (is_selected(selection_, s)) {
        report_.add(difference(s, step == 0 ? What::initial : What::update, step, run, true));
      }
      reference_.set_state(s, run[s]->values);
    }
  }
}

void Comparison::judge(std::int64_t step, Moment moment, const Gathered& run, const std::vector<Call>& calls,
                       const std::function<void()>& compute) {
  const Values before = changed_by(calls);
  compute();
  const Compared compared = compared_at(moment, run);
  make_rounded(compute, before, [&] {
    return std::ranges::all_of(compared, [&](const auto& each) {
      // A difference far beyond the limit fails however often rounding is repeated.
      const double multiple = difference(each.first, each.second, step, run, false).multiple();
      return master_of(each.first, run) != nullptr || multiple <= limit || !(multiple <= most_rounded * limit);
    });
  });
  for (const auto& [s, what] : compared) {
    const Whole* const master = master_of(s, run);
    if (master != nullptr) {
      std::vector<double> rounded = master->values;
      device::round_elements(workload_.graph.states[s].type.dtype, rounded);
      reference_.set_state(s, rounded);
    }
    report_.add(difference(s, what, step, run, master != nullptr));
    roundings_[s] = larger(roundings_[s], latest_[s]);
  }
  for (const graph::StateId s : run.ids()) {
    if (run[s]) {
      reference_.set_state(s, run[s]->values);
    }
  }
}

Comparison::Compared Comparison::compared_at(Moment moment, const Gathered& run) const {
  Compared compared;
  const auto add = [&](graph::StateId state, What what) {
    if (state.exists() && run[state] && is_selected(selection_, state)) {
      compared.emplace_back(state, what);
    }
  };
  if (moment == Moment::gradients || moment == Moment::evaluation) {
    const What what = moment == Moment::gradients ? What::loss : What::evaluation;
    add(workload_.graph.find_state("loss"), what);
    add(workload::loss_count_of(workload_.graph), what);
  }
  for (const graph::StateId s : workload_.graph.states.ids()) {
    const graph::StateKind kind = workload_.graph.states[s].kind;
    if (kind != graph::StateKind::metric && belongs_to(kind, moment)) {
      add(s, moment == Moment::gradients ? What::gradient : workload_.predicts() ? What::prediction : What::update);
    }
  }
  if (moment == Moment::end && workload_.trains()) {
    add(workload_.graph.find_state("gradient_norm"), What::gradient_norm);
  }
  return compared;
}

const Whole* Comparison::master_of(graph::StateId state, const Gathered& run) const {
  const graph::StateId master = workload_.graph.states[state].master;
  return master.exists() && run[master] ? &*run[master] : nullptr;
}

void Comparison::make_rounded(const std::function<void()>& compute, const Values& before,
                              const std::function<bool()>& is_settled) {
  Values exact;
  for (const auto& [s, values] : before) {
    exact.emplace(s, reference_.state(s));
  }
  std::ranges::fill(latest_, Size());
  for (int made = 1;; ++made) {
    load(before);
    reference_.round(true);
    compute();
    reference_.round(false);
    for (const auto& [s, values] : exact) {
      std::size_t worst = 0;
      if (const Size found = size_of(reference_.state(s), values, worst); std::isfinite(found.mean)) {
        latest_[s] = larger(latest_[s], found);  // an infinite value would excuse every error
      }
    }
    load(exact);
    if (made == most_rounded || is_settled()) {
      return;
    }
  }
}

Difference Comparison::difference(graph::StateId state, What what, std::int64_t step, const Gathered& run, bool exact) {
  const graph::State& described = workload_.graph.states[state];
  const graph::State& named = what == What::gradient && described.of_parameter.exists()
                                  ? workload_.graph.states[described.of_parameter]
                                  : described;
  const Whole& whole = *run[state];
  const std::vector<double> expected = reference_.state(state);
  std::size_t worst = 0;
  Difference found = {.tensor = named.name,
                      .state = described.name,
                      .what = what,
                      .error = size_of(whole.values, expected, worst),
                      .rounding = exact ? Size()
                                        : larger(larger(roundings_[state], latest_[state]),
                                                 rounding_of(described.type.dtype, expected)),
                      .expected = root_mean_square(expected),
                      .step = step + 1,
                      .values = static_cast<std::int64_t>(expected.size()),
                      .ranks = ranks_of(whole, described.type.shape, worst)};
  found.note = fmt::format("{} is {:.9g}, should be {:.9g}", element_text(workload_, described, worst),
                           whole.values[worst], expected[worst]);
  if (const Workload::Sequence* const sequence = sequence_of(workload_, described)) {
    if (!found.passed()) {
      found.position = first_position(*sequence, whole.values, expected, found.rounding);
    }
    name_prompt(*sequence, found);
  }
  return found;
}

Comparison::Values Comparison::changed_by(const std::vector<Call>& calls) const {
  std::set<graph::StateId> changed;
  for (const Call& call : calls) {
    for (const graph::StateWrite& write : workload_.graph.find(call.function, call.rows)->writes) {
      changed.insert(write.state);
    }
  }
  for (const graph::StateId s : written_states(workload_.graph)) {
    if (belongs_to(workload_.graph.states[s].kind, Moment::begin)) {
      changed.insert(s);
    }
  }
  Values values;
  for (const graph::StateId s : changed) {
    values.emplace(s, reference_.state(s));
  }
  return values;
}

void Comparison::load(const Values& values) {
  for (const auto& [s, each] : values) {
    reference_.set_state(s, each);
  }
}

}  // namespace shardrun::verify
