#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/conformance/engine_member.h"
#include "core/conformance/plugin_options.h"
#include "core/conformance/sandbox.h"

namespace shardrun::conformance {
namespace {

constexpr std::int64_t usual_rows = 7;

void opens_engine(EngineMember& member) {
  (void)member.engine();
  (void)member.open_another();
}

void declared_by_engine(EngineMember& member) {
  require_declared(member.engine().options(), member.open_another().options());
  (void)member.sizes();
}

/// The engine declares the same parameters when it is asked twice, in another instance and in another process, for
/// every number of ranks.
void same_parameters(EngineMember& member) {
  for (const std::uint32_t n : member.sizes()) {
    compile::JobEngine job = member.job_on(n);
    const std::string first = to_string(job);
    const plugins::Engine another = member.open_another();
    for (std::uint32_t rank = 0; rank < n; ++rank) {
      job.parameters[rank] = member.declare(another, rank, n).parameters;
    }
    const std::string place = fmt::format("parameters on {} ranks", n);
    member.tell(place, first);
    if (to_string(member.job_on(n)) != first || to_string(job) != first ||
        member.hear(place, (member.rank() + 1) % engine_members) != first) {
      throw Failure(
          fmt::format("on {} ranks it declares other parameters when it is asked again, as another instance "
                      "or in another process",
                      n));
    }
    compile::require_whole_parameters(job);
  }
}

void pure_declaring(EngineMember& member) {
  (void)member.sizes();
  watch_calls([&] { (void)member.engine(); }, [&] { (void)member.job_on(member.sizes().front()); });
}

/// Throws Failure if `found` differs from `expected` by more than another order of float32 sums can explain.
void require_near(const std::vector<float>& found, const std::vector<float>& expected, const std::string& what) {
  double off = 0;
  double size = 0;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(found[i]) - expected[i];
    worst = std::abs(difference) > std::abs(static_cast<double>(found[worst]) - expected[worst]) ? i : worst;
    off += difference * difference;
    size += static_cast<double>(expected[i]) * expected[i];
  }
  if (!(off <= 1e-8 * size + 1e-12)) {
    throw Failure(fmt::format("{}: element {} is {:.9g}, expected {:.9g}", what, worst, found[worst], expected[worst]));
  }
}

void require_near(const WholeValues& found, const WholeValues& expected, const std::string& what) {
  for (const auto& [name, values] : expected) {
    require_near(found.at(name), values, fmt::format("{} of {}", what, name));
  }
}

/// Predictions do not depend on the number of ranks, not even with fewer samples than ranks, when some ranks have none.
void same_on_any_ranks(EngineMember& member) {
  for (const std::int64_t rows : {usual_rows, std::int64_t{2}}) {
    std::vector<float> predictions;
    WholeValues gradients;
    for (const std::uint32_t n : member.sizes()) {
      if (member.rank() >= n) {
        continue;
      }
      const std::string place = fmt::format("{} samples on {} ranks", rows, n);
      EngineRun run(member, n);
      const std::vector<float> found = run.predict(rows);
      const WholeValues found_gradients = run.differentiate();
      run.end();
      if (predictions.empty()) {
        predictions = found;
        gradients = found_gradients;
      }
      require_near(found, predictions, fmt::format("the predictions for {}", place));
      require_near(found_gradients, gradients, fmt::format("the gradient, for {},", place));
    }
  }
}

/// The derivative of weighted_sum() with respect to one element of a parameter, by a central difference.
double difference_of(EngineMember& member, std::uint32_t n, const std::string& parameter, std::size_t index) {
  constexpr double step = 1e-2;
  double sums[2] = {};
  for (const int side : {0, 1}) {
    EngineRun run(member, n, [&](const std::string& name, std::int64_t at) {
      const double change = side == 0 ? step : -step;
      return usual_value(name, at) +
             static_cast<float>(name == parameter && at == static_cast<std::int64_t>(index) ? change : 0);
    });
    sums[side] = EngineRun::weighted_sum(run.predict(usual_rows));
  }
  return (sums[0] - sums[1]) / (2 * step);
}

/// Compares gradients on the smallest number of ranks with central differences. same_on_any_ranks() has the others.
void engine_gradients(EngineMember& member) {
  const std::uint32_t n = member.sizes().front();
  if (member.rank() >= n) {
    return;
  }
  EngineRun run(member, n);
  (void)run.predict(usual_rows);
  for (const auto& [name, gradient] : run.differentiate()) {
    double largest = 0;
    for (const float value : gradient) {
      largest = std::max(largest, std::abs(static_cast<double>(value)));
    }
    for (std::size_t index = 0; index < gradient.size(); index += std::max<std::size_t>(1, gradient.size() / 8)) {
      const double expected = difference_of(member, n, name, index);
      if (!(std::abs(gradient[index] - expected) <= 0.03 * std::max(largest, std::abs(expected)) + 1e-3)) {
        throw Failure(fmt::format("the gradient of {}: element {} is {:.6g}, and central differences give {:.6g}", name,
                                  index, gradient[index], expected));
      }
    }
  }
}

void same_again(EngineMember& member) {
  for (const std::uint32_t n : member.sizes()) {
    if (member.rank() >= n) {
      continue;
    }
    EngineRun run(member, n);
    const std::vector<float> predictions = run.predict(usual_rows);
    const WholeValues gradients = run.differentiate();
    (void)run.predict(3);
    if (run.predict(usual_rows) != predictions || run.differentiate() != gradients) {
      throw Failure(fmt::format("on {} ranks it gives other results for the same samples and parameters", n));
    }
  }
}

void loads_checkpoint(EngineMember& member) {
  for (const std::uint32_t n : member.sizes()) {
    if (member.rank() >= n) {
      continue;
    }
    EngineRun run(member, n);
    WholeValues tensors = run.parameters();
    for (auto& [name, values] : tensors) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(i) + static_cast<float>(name.size()) / 64;
      }
    }
    run.load(tensors);
    for (const auto& [name, values] : run.parameters()) {
      const std::vector<float>& expected = tensors.at(name);
      const auto differs = std::mismatch(values.begin(), values.end(), expected.begin());
      if (differs.first != values.end()) {
        throw Failure(
            fmt::format("on {} ranks, after load_checkpoint element {} of '{}' is {}, and the tensor of that "
                        "name has {}",
                        n, differs.first - values.begin(), name, *differs.first, *differs.second));
      }
    }
  }
}

void misses_tensors(EngineMember& member) {
  const std::uint32_t n = member.sizes().front();
  if (member.rank() >= n) {
    return;
  }
  EngineRun run(member, n);
  try {
    run.load({});
  } catch (const Error&) {
    return;
  }
  if (!run.job().own().empty()) {
    throw Failure("load_checkpoint accepts a file without its parameters and says nothing");
  }
}

/// Records of one to three samples. Keeps this rank's predictions for them.
class FewRecords final : public plugins::EngineRecords {
 public:
  explicit FewRecords(EngineRun& run) : run_(run) {}

  bool next(const plugins::MakeArray& make) override {
    if (read_ == 3) {
      return false;
    }
    const std::vector<float> values = run_.inputs(++read_);
    const std::int64_t features = run_.job().request.features;
    void* const to = make(run_.job().samples(static_cast<std::int64_t>(values.size()) / features));
    std::copy(values.begin(), values.end(), static_cast<float*>(to));
    return true;
  }

  void write(const plugins::ArrayView& predictions) override {
    const auto* const values = static_cast<const float*>(predictions.address);
    written_.emplace_back(values, values + predictions.elements());
  }

  [[nodiscard]] const std::vector<std::vector<float>>& written() const noexcept { return written_; }

 private:
  EngineRun& run_;
  std::int64_t read_ = 0;
  std::vector<std::vector<float>> written_;
};

void infers_in_order(EngineMember& member) {
  for (const std::uint32_t n : member.sizes()) {
    if (member.rank() >= n) {
      continue;
    }
    EngineRun run(member, n);
    FewRecords records(run);
    run.instance().infer(records);
    std::vector<std::vector<float>> expected;
    for (const std::int64_t rows : {1, 2, 3}) {
      (void)run.predict(rows);
      expected.push_back(run.own_predictions());
    }
    if (records.written() != expected) {
      throw Failure(
          fmt::format("on {} ranks it writes predictions for {} of 3 records, or not those that forward "
                      "returns, in the order of the records",
                      n, records.written().size()));
    }
  }
}

/// The states after each of `steps` steps. `begun`: the states to start from, and the number of steps done
/// before; empty: a new run.
std::vector<WholeValues> iterated(EngineMember& member, std::uint32_t n, std::int64_t steps,
                                  const std::pair<WholeValues, std::int64_t>& begun = {}) {
  EngineRun run(member, n, [&](const std::string& name, std::int64_t index) {
    const auto found = begun.first.find(name);
    return found == begun.first.end() ? usual_value(name, index) : found->second[static_cast<std::size_t>(index)];
  });
  std::vector<WholeValues> states;
  for (std::int64_t step = begun.second; step < begun.second + steps; ++step) {
    run.step(step);
    states.push_back(run.parameters());
  }
  run.end();
  return states;
}

void same_states_on_any_ranks(EngineMember& member) {
  std::vector<WholeValues> expected;
  for (const std::uint32_t n : member.sizes()) {
    if (member.rank() >= n) {
      continue;
    }
    const std::vector<WholeValues> found = iterated(member, n, 3);
    expected = expected.empty() ? found : expected;
    for (std::size_t step = 0; step < found.size(); ++step) {
      require_near(found[step], expected[step], fmt::format("on {} ranks, after step {}, the state", n, step + 1));
    }
  }
}

void goes_on_from_states(EngineMember& member) {
  for (const std::uint32_t n : member.sizes()) {
    if (member.rank() >= n) {
      continue;
    }
    const std::vector<WholeValues> whole = iterated(member, n, 3);
    if (iterated(member, n, 2, {whole.front(), 1}).back() != whole.back()) {
      throw Failure(
          fmt::format("on {} ranks it goes on otherwise from the states of step 1 than if it had not ended "
                      "there: a step may depend on its number and the states alone",
                      n));
    }
  }
}

using Check = std::function<void(EngineMember&)>;

Check if_it_trains(const Check& check) {
  return [check](EngineMember& member) {
    member.engine().trains() ? check(member)
                             : member.note(member.engine().predicts() ? "nothing to check: it infers alone"
                                                                      : "nothing to check: it iterates alone");
  };
}

Check if_it_iterates(const Check& check) {
  return [check](EngineMember& member) {
    member.engine().iterates() ? check(member) : member.note("nothing to check: it does not iterate");
  };
}

std::vector<EngineCase> engine_cases() {
  std::vector<EngineCase> cases;
  cases.push_back({.name = opening_case, .run = opens_engine});
  cases.push_back({.name = "declared options", .run = declared_by_engine});
  cases.push_back({.name = "the same parameters, whoever asks, and all of each", .run = same_parameters});
  cases.push_back({.name = "the same results on any number of ranks", .run = if_it_trains(same_on_any_ranks)});
  cases.push_back({.name = "gradients equal central differences", .run = if_it_trains(engine_gradients)});
  cases.push_back({.name = "the same results again", .run = if_it_trains(same_again)});
  cases.push_back({.name = "a checkpoint, by the names of its tensors", .run = if_it_trains(loads_checkpoint)});
  cases.push_back({.name = "predictions of records, in order", .run = if_it_trains(infers_in_order)});
  cases.push_back(
      {.name = "steps: the same states on any number of ranks", .run = if_it_iterates(same_states_on_any_ranks)});
  cases.push_back({.name = "steps: they go on from saved states", .run = if_it_iterates(goes_on_from_states)});
  // This is the last case for these ranks, because their collectives can fail in it and then stay unusable.
  cases.push_back({.name = "a checkpoint without the tensors", .run = if_it_trains(misses_tensors)});
  cases.push_back({.name = "no file or socket to declare parameters", .run = pure_declaring, .ranks = 1});
  return cases;
}

const RegisterKind engines({plugins::PluginKind::engine, [] { return infos_of(engine_cases()); },
                            [](Store& store, const MemberWords& words, std::string& before) {
                              go_through(
                                  engine_cases(),
                                  EngineMember(store, words.directories, words.plugin, words.rank, words.settings),
                                  words, before);
                            }});

}  // namespace
}  // namespace shardrun::conformance
