#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/compile/describe.h"
#include "core/conformance/model_member.h"
#include "core/conformance/numbered_samples.h"
#include "core/conformance/tensor.h"
#include "core/device/elements.h"
#include "core/partition/partition.h"
#include "core/runtime/executor.h"
#include "core/verify/verify.h"
#include "core/workload/program.h"
#include "plugins/loader/call.h"
#include "plugins/loader/strategy.h"

namespace shardrun::conformance {
namespace {

using graph::StateId;

verify::Workload workload_of(const ModelJob& job, const graph::Graph& graph, const data::Dataset& samples) {
  return {.graph = graph,
          .microbatch_rows = microbatch_rows_of(job),
          .evaluation_rows = evaluation_rows_of(job),
          .iterated_rows = iterated_rows_of(job),
          .dataset = &samples,
          .seed = 17,
          .learning_rate = [](std::int64_t step) { return 0.01 / static_cast<double>(step + 1); }};
}

NumberedSamples samples_of(const ModelJob& job) {
  return NumberedSamples(static_cast<std::int32_t>(std::max<std::int64_t>(job.settings.data.vocab, 1)));
}

/// The first microbatch of a step on the float64 device. It can be computed repeatedly with other parameters.
class Microbatch {
 public:
  Microbatch(const ModelJob& job, const graph::Graph& graph)
      : graph_(graph),
        samples_(samples_of(job)),
        workload_(workload_of(job, graph, samples_)),
        call_(verify::gradient_calls(workload_, 0).front()),
        device_(device::Device::find("reference")),
        executor_(partition::programs_of(graph, device_, 1), device_),
        program_(executor_.find(call_.function, call_.rows)) {
    runtime::initialize(graph, 17, executor_);
    Random random(5);
    for (const StateId s : graph.states.ids()) {
      if (graph.states[s].kind == graph::StateKind::parameter) {  // initial zeros would hide gradients
        Tensor noise = zeros(graph.states[s].type);
        random.fill_normal(noise, 0, 0.1);
        for (std::size_t e = 0; e < noise.values.size(); ++e) {
          add(s, e, noise.values[e]);
        }
      }
    }
  }

  double loss() {
    verify::feed(workload_, call_, executor_, program_);
    executor_.run(program_, call_.scalars);
    return value(graph_.find_state("loss"), 0);
  }
  void add(StateId state, std::size_t element, double difference) {
    double sum = value(state, element) + difference;
    device::write_elements(executor_.state(state), static_cast<std::int64_t>(element), {&sum, 1});
  }
  [[nodiscard]] double value(StateId state, std::size_t element) const {
    return device::read_element(executor_.state(state), static_cast<std::int64_t>(element));
  }

 private:
  const graph::Graph& graph_;
  NumberedSamples samples_;
  verify::Workload workload_;
  verify::Call call_;
  const device::Device& device_;
  runtime::Executor executor_;
  std::size_t program_;
};

/// Compares a gradient with central differences of several step sizes, because one can cross a kink of the loss.
/// Returns the problem; empty if they agree for one step size.
std::string differs(Microbatch& batch, StateId parameter, std::size_t element, double expected, double largest) {
  double numeric = 0;
  for (const double step : {1e-5, 1e-6, 1e-4}) {
    batch.add(parameter, element, step);
    const double above = batch.loss();
    batch.add(parameter, element, -2 * step);
    const double below = batch.loss();
    batch.add(parameter, element, step);
    numeric = (above - below) / (2 * step);
    if (std::abs(numeric - expected) <= 1e-4 * std::max(largest, 1e-4)) {
      return {};
    }
  }
  return fmt::format("element {} is {:.6g}, and central differences of the loss give {:.6g}", element, expected,
                     numeric);
}

/// Indices of the elements to check: the one with the largest gradient, and some others.
std::vector<std::size_t> chosen_elements(const std::vector<double>& gradient) {
  const auto larger = [](double a, double b) { return std::abs(a) < std::abs(b); };
  std::vector<std::size_t> chosen = {
      static_cast<std::size_t>(std::ranges::max_element(gradient, larger) - gradient.begin())};
  Random random(3);
  for (int i = 0; i < 4; ++i) {
    chosen.push_back(static_cast<std::size_t>(random.below(static_cast<std::int64_t>(gradient.size()))));
  }
  return chosen;
}

void check_gradients(const ModelJob& job, const graph::Graph& graph) {
  Microbatch batch(job, graph);
  if (!std::isfinite(batch.loss())) {
    throw Failure(fmt::format("{}: the loss of the first step is not finite", job.name));
  }
  std::vector<std::pair<StateId, std::vector<double>>> gradients;
  for (const StateId s : graph.states.ids()) {
    if (graph.states[s].kind == graph::StateKind::gradient) {
      std::vector<double>& values = gradients.emplace_back(graph.states[s].of_parameter, std::vector<double>()).second;
      for (std::int64_t e = 0; e < graph::element_count(graph.states[s].type); ++e) {
        values.push_back(batch.value(s, static_cast<std::size_t>(e)));
      }
    }
  }
  for (const auto& [parameter, values] : gradients) {
    const std::vector<std::size_t> chosen = chosen_elements(values);
    for (const std::size_t element : chosen) {
      const std::string problem = differs(batch, parameter, element, values[element], std::abs(values[chosen.front()]));
      if (!problem.empty()) {
        throw Failure(fmt::format("{}: the gradient of {}: {}", job.name, graph.states[parameter].name, problem));
      }
    }
  }
}

void gradient_of_loss(ModelMember& member) {
  bool any = false;
  for (const ModelJob& job : member.jobs()) {
    if (job.trains) {
      const graph::Graph graph = build_graph(member.model(), job);
      check_gradients(job, graph);
      if (const std::string untrained = workload::untrained_notice(graph); !untrained.empty()) {
        member.note(fmt::format("{}: {}", job.name, untrained));
      }
      any = true;
    }
  }
  if (!any) {
    member.note("nothing to check: the model has no loss");
  }
}

/// Runs the job, split by the plan, and compares all tensors with the float64 device. Returns why the plan cannot split
/// this graph; empty if it can.
std::string check_plan(const ModelJob& job, const graph::Graph& graph, const plan::Plan& plan, const std::string& how) {
  const NumberedSamples samples = samples_of(job);
  const verify::Workload workload = workload_of(job, graph, samples);
  partition::Partition partition;
  try {
    partition = partition::split(graph, plan, workload.microbatch_rows, workload.evaluation_rows);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::job) {
      throw Failure(fmt::format("{}, {}: {}", job.name, how, error.message()));
    }
    return error.message();
  }
  const verify::Report report = verify::verify_interpreted(workload, partition, {});
  if (report.passed()) {
    return {};
  }
  const verify::Difference worst = report.worst().front();
  throw Failure(fmt::format(
      "{}, {}: {} of {} differs from the float64 reference by {:.3g}, which is {:.3g} times what rounding "
      "does; expected at most {} times ('shardrun verify' of a job shows all)",
      job.name, how, to_string(worst.what), worst.tensor, worst.relative(), worst.multiple(), verify::limit));
}

/// The beginning of a reason, because reasons can be long and many.
std::string shortened(const std::string& reason) {
  constexpr std::size_t most = 100;
  return reason.size() <= most ? reason : fmt::format("{:.{}}…", reason, most);
}

/// Splits each axis on its own, and compares results with the unsplit job.
void split_by_hand(ModelMember& member) {
  for (const ModelJob& job : member.jobs()) {
    const graph::Graph graph = build_graph(member.model(), job);
    for (const sdk::Axis& axis : compile::describe(graph, microbatch_rows_of(job)).graph.axes) {
      for (const std::uint32_t ranks : {2U, 3U}) {
        plan::Plan plan{.strategy = "by hand"};
        plan.mesh = {{"m", ranks}};
        plan.axes = {{axis.name, {"m"}}};
        const std::string how = fmt::format("the axis {} over {} ranks", axis.name, ranks);
        if (const std::string refusal = check_plan(job, graph, plan, how); !refusal.empty()) {
          member.note(fmt::format("not compared, {}: {}", how, shortened(refusal)));
        }
      }
    }
  }
}

/// Splits the job by a strategy, and compares results with the unsplit job. Returns why the strategy cannot split it;
/// empty if it was compared.
std::string check_strategy(const plugins::Strategy& strategy, const plugins::StrategyRequest& request,
                           const ModelJob& job, const graph::Graph& graph) {
  plan::Plan plan;
  try {
    plan = strategy.make_plan(request);
  } catch (const plugins::Invalid& refusal) {
    return refusal.reason();
  } catch (const Error& error) {
    return error.message();
  }
  if (!plan.hooks.empty() || !plan.varying.empty()) {
    return "it changes what is computed";
  }
  return check_plan(job, graph, plan,
                    fmt::format("split by strategy {} over {} ranks", plan.strategy, request.job.ranks));
}

void split_by_strategies(ModelMember& member) {
  for (const ModelJob& job : member.jobs()) {
    const graph::Graph graph = build_graph(member.model(), job);
    plugins::StrategyRequest request = compile::describe(graph, microbatch_rows_of(job));
    for (const std::string& name : plugins::plugin_names(member.directories(), plugins::PluginKind::strategy)) {
      std::optional<plugins::Strategy> strategy;
      try {
        strategy = plugins::Strategy::open(member.directories(), name);
      } catch (const Error&) {
        continue;
      }
      std::vector<std::string> refusals;
      for (const std::uint32_t ranks : {1U, 2U, 3U}) {
        request.job.ranks = ranks;
        std::string refusal = check_strategy(*strategy, request, job, graph);
        if (ranks > 1 && !refusal.empty()) {
          refusals.push_back(std::move(refusal));
        }
      }
      if (refusals.size() == 2) {
        member.note(fmt::format("not compared, {} over 2 and 3 ranks: {}", name, shortened(refusals.front())));
      }
    }
  }
}

}  // namespace

void add_training_cases(std::vector<ModelCase>& cases) {
  cases.push_back({.name = "the gradient of the loss", .run = gradient_of_loss, .ranks = 1});
  cases.push_back({.name = "the same results with every axis split", .run = split_by_hand, .ranks = 1});
  cases.push_back({.name = "the same results as strategies split it", .run = split_by_strategies, .ranks = 1});
}

}  // namespace shardrun::conformance
