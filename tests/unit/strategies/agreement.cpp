#include "tests/unit/strategies/agreement.h"

#include <algorithm>
#include <map>

#include "core/compile/describe.h"
#include "core/options/convert.h"
#include "core/partition/hooks.h"
#include "core/verify/compare.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/ring.h"

namespace shardrun::test {
namespace {

using verify::Moment;
using workload::OptimizerSettings;

workload::TrainingSettings training(const OptimizerSettings& optimizer, graph::Remat remat = graph::Remat::none) {
  return {.batch = 7, .microbatches = 3, .eval_rows = 3, .eval_samples = 5, .remat = remat, .optimizer = optimizer};
}

const OptimizerSettings adamw{.weight_decay = 0.1, .clip = 0.5};
const OptimizerSettings momentum{
    .kind = OptimizerSettings::Kind::sgd, .momentum = 0.9, .weight_decay = 0.1, .clip = 0.5};

/// What one call of a step, or all that its programs do at once, send.
void add_calls(partition::SentBytes& sum, const partition::Programs& programs, std::string_view function,
               const std::vector<std::int64_t>& rows) {
  for (const std::size_t program : programs.find_calls(function, rows)) {
    partition::add_sent_bytes(sum, programs, programs.programs[program]);
  }
}

/// The bytes sent, in the form that plans have: without entries that have sent nothing.
partition::SentBytes sent_by(const runtime::Executor& executor) {
  partition::SentBytes sent;
  for (const auto& [axis, collectives] : executor.sent()) {
    for (const auto& [collective, bytes] : collectives) {
      if (bytes > 0) {
        sent[axis][collective] = bytes;
      }
    }
  }
  return sent;
}

void check_ranks(const VerifyCase& checked, runtime::Interpreter& ranks, std::int64_t steps) {
  for (std::size_t r = 0; r < ranks.ranks(); ++r) {
    const partition::Programs& programs = ranks.programs(r);
    partition::SentBytes planned;
    for (std::int64_t step = 0; step < steps; ++step) {
      add_calls(planned, programs, "micro", checked.model.microbatch_rows);
      add_calls(planned, programs, "update", {0});
    }
    add_calls(planned, programs, "evaluate", checked.model.evaluation_rows);
    INFO("rank " << r);
    CHECK(sent_by(ranks.rank(r)) == planned);
    CHECK(ring_agrees(programs));
    CHECK(ranks.rank(r).touched_bytes() == programs.memory.peak);
  }
}

}  // namespace

void add_schedule(OptionValues& options, const std::string& schedule) {
  const std::size_t blank = schedule.find(' ');
  options.set("schedule", schedule.substr(0, blank));
  if (blank != std::string::npos) {
    options.set("chunks", std::int64_t{std::stoll(schedule.substr(blank + 1))});
  }
}

const std::vector<std::string>& all_schedules() {
  static const std::vector<std::string> schedules = {"gpipe", "1f1b", "interleaved 2", "interleaved 3", "zb-h1"};
  return schedules;
}

std::string to_string(const Choice& choice) {
  std::string text = choice.strategy;
  for (const plan::MeshAxis& axis : choice.mesh) {
    text += " " + axis.name + (axis.name.empty() ? "" : "=") + std::to_string(axis.size);
  }
  for (const auto& [name, value] : choice.options.entries()) {
    text += ", " + name + " = " + to_text({.name = name}, value);
  }
  for (const std::int64_t rank : choice.order) {
    text += " " + std::to_string(rank);
  }
  return text;
}

Answer answer_by(const ModelCase& model, const Choice& choice) {
  static std::map<std::string, plugins::Strategy> opened;
  auto strategy = opened.find(choice.strategy);
  if (strategy == opened.end()) {
    strategy = opened
                   .emplace(choice.strategy,
                            plugins::Strategy::open({SHARDRUN_PLUGINS, SHARDRUN_HOOKED_PLUGINS}, choice.strategy))
                   .first;
  }
  plugins::StrategyRequest request = compile::describe(model.graph, model.microbatch_rows);
  for (const plan::MeshAxis& axis : choice.mesh) {
    request.job.ranks *= axis.size;
    if (!axis.name.empty()) {
      request.job.mesh.push_back({axis.name, axis.size});
    }
  }
  request.options = choice.options;
  plan::Plan plan = strategy->second.make_plan(request);
  plan.order = choice.order;
  std::shared_ptr<const plugins::Hooks> hooks = strategy->second.hooks(request, plan);
  return {.plan = std::move(plan), .hooks = std::move(hooks)};
}

partition::Partition split_by(const ModelCase& model, const Choice& choice) {
  return partition::split(model.graph, answer_by(model, choice).plan, model.microbatch_rows);
}

partition::Programs programs_by(const ModelCase& model, const partition::Partition& partition, std::int64_t rank) {
  return partition::programs_of(model.graph, partition, {.device = device::Device::find("cpu"), .rank = rank});
}

VerifyCase gpt_case(std::string name, const GptSettings& settings) {
  return VerifyCase(training_case(std::move(name), "gpt",
                                  {{"layers", settings.layers},
                                   {"heads", "7"},
                                   {"width", "14"},
                                   {"context", "6"},
                                   {"bias", settings.bias},
                                   {"tied", settings.tied},
                                   {"dropout", settings.dropout}},
                                  {.vocab = 65}, training(adamw, settings.remat)));
}

VerifyCase plain_gpt() { return gpt_case("gpt tied", {}); }

VerifyCase full_gpt() {
  return gpt_case("gpt with biases and dropout", {.bias = "true", .tied = "false", .dropout = "0.2"});
}

VerifyCase five_layers() { return gpt_case("gpt of five layers, tied", {.layers = "5", .bias = "true"}); }

VerifyCase mlp_of_numbers() {
  return VerifyCase(training_case("mlp", "mlp", {{"hidden", "9"}}, {.features = 5, .outputs = 3}, training(adamw)));
}

VerifyCase mlp_of_labels() {
  return VerifyCase(training_case("mlp of labels, momentum", "mlp", {{"hidden", "23"}, {"loss", "cross_entropy"}},
                                  {.vocab = 4, .features = 17}, training(momentum)));
}

Split::Split(const VerifyCase& given, const Choice& choice) : checked(given) {
  Answer answer = answer_by(checked.model, choice);
  partition::add_hook_states(checked.model.graph, answer.plan);
  hooks = std::move(answer.hooks);
  partition = partition::split(checked.model.graph, answer.plan, checked.model.microbatch_rows);
}

void Split::interpret(std::int64_t steps, const verify::AtMoment& at_moment, std::string_view device) const {
  verify::interpret(checked.workload(), partition, {.device = device, .steps = steps, .hooks = hooks.get()}, at_moment);
}

void check_agrees(const VerifyCase& given, const Choice& choice, std::string_view device) {
  constexpr std::int64_t steps = 2;
  INFO(given.model.name << ", " << to_string(choice));
  const auto states = static_cast<std::ptrdiff_t>(given.model.graph.states.size());
  const Split split(given, choice);
  const verify::Workload workload = split.checked.workload();
  verify::Comparison comparison(workload, split.partition.placements.mesh.ranks(), 1);
  split.interpret(
      steps,
      [&](std::int64_t step, Moment moment, runtime::Interpreter& ranks) {
        comparison.add(step, moment, [&](std::int64_t rank) {
          return verify::take_snapshot(workload.graph, ranks.rank(static_cast<std::size_t>(rank)), moment);
        });
        if (moment == Moment::evaluation) {
          check_ranks(split.checked, ranks, steps);
        }
      },
      device);
  INFO(verify::to_text(comparison.report()));
  const std::vector<verify::Difference> compared = comparison.report().worst();
  CHECK(std::count_if(compared.begin(), compared.end(),
                      [](const verify::Difference& each) { return each.what == verify::What::replica; }) == states);
  CHECK(comparison.report().passed());
  CHECK(comparison.report().steps() == steps);
}

void check_all_agree(const std::vector<VerifyCase>& models, const std::vector<Choice>& choices) {
  for (std::size_t m = 0; m < models.size(); ++m) {
    const auto every = depth<std::size_t>(1, 2, 8);
    for (std::size_t c = m % every; c < choices.size(); c += every) {
      check_agrees(models[m], choices[c]);
    }
  }
}

}  // namespace shardrun::test
