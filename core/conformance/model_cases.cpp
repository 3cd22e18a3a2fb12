#include <fmt/format.h>
#include <shardrun/model.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/hub_folder.h"
#include "core/compile/model.h"
#include "core/conformance/model_member.h"
#include "core/conformance/plugin_options.h"
#include "core/conformance/sandbox.h"
#include "core/conformance/strategy_member.h"
#include "core/options/convert.h"
#include "plugins/loader/library.h"

namespace shardrun::conformance {
namespace {

using plugins::Model;

void opens_model(ModelMember& member) {
  (void)member.model();
  (void)member.open_another();
}

void declared_by_model(ModelMember& member) {
  if (member.model().help().empty()) {
    throw Failure("the model has no help: expected one line that says what it is");
  }
  const std::vector<OptionSpec> options = member.model().options();
  require_declared(options, member.open_another().options());
  for (const char* const name : {"context", "vocab"}) {
    if ((member.model().data() & SR_DATA_TOKENS) != 0 &&
        std::ranges::find(options, name, &OptionSpec::name) == options.end()) {
      throw Failure(
          fmt::format("it is trained on tokens and has no option '{}', by which a job says {}: declare it as an "
                      "integer",
                      name,
                      std::string_view(name) == "vocab" ? "how many distinct tokens a file of tokens has"
                                                        : "how many tokens a sample has"));
    }
  }
}

/// The graph that a model makes for a job, as text, or its refusal.
std::string answer_of(const Model& model, const ModelJob& job) {
  try {
    return to_string(build_graph(model, job));
  } catch (const Error& refusal) {
    return fmt::format("a refusal: {}", refusal.message());
  }
}

void require_same_graph(const std::string& expected, const std::string& found, const std::string& what) {
  require_same({.is_plan = true, .text = expected}, {.is_plan = true, .text = found}, what);
}

void same_graph(ModelMember& member) {
  for (const ModelJob& job : member.jobs()) {
    const std::string first = answer_of(member.model(), job);
    require_same_graph(first, answer_of(member.model(), job), job.name + ": asked twice, it writes different graphs");
    require_same_graph(first, answer_of(member.open_another(), job),
                       job.name + ": another instance writes another graph");
    member.tell(job.name, first);
    require_same_graph(first, member.hear(job.name, 1 - member.rank()),
                       job.name + ": another process writes another graph");
  }
}

std::size_t size_of(const graph::Graph& graph) {
  std::size_t size = graph.states.size();
  for (const graph::Function& function : graph.functions) {
    size += function.nodes.size();
  }
  return size;
}

/// Calls `ask` with the job after setting the option to this value. Adds the option and the value to Failures of `ask`.
template <class Ask>
auto ask_with(ModelJob job, const OptionSpec& option, const OptionValue& value, Ask ask) {
  job.settings.options.set(option.name, value);
  try {
    return ask(job);
  } catch (const Failure& failure) {
    throw Failure(
        fmt::format("{} with {} = {:.60}: {}", job.name, option.name, to_text(option, value), failure.what()));
  }
}

/// Whether a larger value of the option adds states or ops to the graph, or the model refuses the values tried. The
/// largest allowed value of an option that adds ops would exhaust memory.
bool is_structural(const Model& model, const ModelJob& small, const OptionSpec& option) {
  std::vector<std::size_t> sizes;
  for (const std::int64_t number : {8, 12}) {
    try {
      sizes.push_back(
          ask_with(small, option, number, [&](const ModelJob& job) { return size_of(build_graph(model, job)); }));
    } catch (const Error&) {
      return true;
    }
  }
  return sizes[0] != sizes[1];
}

std::vector<OptionValue> tried_values(const Model& model, const ModelJob& job, const OptionSpec& option) {
  constexpr std::int64_t usual = 64;
  std::vector<OptionValue> values = extreme_values(option);
  if (option.minimum_excluded) {
    values.erase(values.begin());
  }
  if (option.maximum_excluded) {
    values.pop_back();
  }
  for (OptionValue& value : values) {
    auto* const number = std::get_if<std::int64_t>(&value);
    if (number != nullptr && *number > usual && is_structural(model, job, option)) {
      *number = usual;
    }
  }
  return values;
}

void model_options_at_limits(ModelMember& member) {
  if (member.model().options().empty()) {
    member.note("nothing to check: the model has no options");
  }
  for (const ModelJob& small : member.jobs()) {
    for (const OptionSpec& option : member.model().options()) {
      for (const OptionValue& value : tried_values(member.model(), small, option)) {
        (void)ask_with(small, option, value, [&](const ModelJob& job) { return answer_of(member.model(), job); });
      }
    }
  }
}

void pure_writing(ModelMember& member) {
  (void)member.jobs();
  watch_calls([&] { (void)member.model(); },
              [&] {
                for (const ModelJob& job : member.jobs()) {
                  (void)build_graph(member.model(), job);
                }
              });
}

/// Values for the parameters that the model declares: element i, counted over all parameters, is the float with the bit
/// pattern i.
checkpoint::TensorSource numbered_parameters(const graph::Graph& graph) {
  checkpoint::TensorSource source;
  std::vector<std::uint32_t> before;
  std::uint32_t all = 0;
  for (const graph::State& state : graph.states) {
    if (state.kind == graph::StateKind::parameter) {
      source.tensors.push_back({state.name, checkpoint::DType::f32, state.type.shape});
      before.push_back(all);
      all += static_cast<std::uint32_t>(*checkpoint::tensor_bytes(source.tensors.back()) / sizeof(float));
    }
  }
  source.read = [before](std::size_t tensor, std::int64_t first, std::span<std::byte> to) {
    for (std::size_t i = 0; i < to.size() / sizeof(float); ++i) {
      const std::uint32_t number = before[tensor] + static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(i);
      std::memcpy(&to[i * sizeof(float)], &number, sizeof(number));
    }
  };
  return source;
}

std::vector<std::byte> bytes_of(const checkpoint::TensorSource& source, const std::string& tensor) {
  const std::size_t index = source.index_of(tensor);
  std::vector<std::byte> bytes(*checkpoint::tensor_bytes(source.tensors[index]));
  source.read(index, 0, bytes);
  return bytes;
}

/// The config.json that a model writes gives the same model again, and the tensors of the folder give the same
/// parameters, bit for bit.
void folders_of_others(ModelMember& member) {
  const workload::Model model = compile::model_of(member.model());
  if (model.architectures.empty()) {
    member.note("nothing to check: the model is not in folders of others");
    return;
  }
  for (const ModelJob& job : member.jobs()) {
    graph::Graph graph;
    std::vector<sdk::ConfigValue> config;
    try {
      model.declare(graph, job.settings);
      config = model.write_config(job.settings);
    } catch (const Error& refusal) {
      if (refusal.code() != ErrorCode::job) {
        throw;
      }
      member.note(fmt::format("{}: no folder of others has this model: {}", job.name, refusal.message()));
      continue;
    }
    workload::ModelSettings again = job.settings;
    again.options = checked_with_defaults(model.options, model.read_config(config));
    graph::Graph read;
    model.declare(read, again);
    require_same_graph(to_string(graph), to_string(read),
                       job.name + ": read_config of what write_config wrote makes another model");
    const checkpoint::TensorSource weights = numbered_parameters(graph);
    const checkpoint::TensorSource there = checkpoint::hub_tensors(weights, model, job.settings);
    const checkpoint::TensorSource back = checkpoint::states_of_hub(there, model, job.settings);
    for (const checkpoint::TensorInfo& tensor : weights.tensors) {
      if (bytes_of(weights, tensor.name) != bytes_of(back, tensor.name)) {
        throw Failure(
            fmt::format("{}: {} has other values after it was written under the names of others and read again",
                        job.name, tensor.name));
      }
    }
  }
}

/// All cases; those with the same number of ranks are adjacent.
std::vector<ModelCase> model_cases() {
  std::vector<ModelCase> cases;
  cases.push_back({.name = opening_case, .run = opens_model});
  cases.push_back({.name = "declared options", .run = declared_by_model});
  cases.push_back({.name = "the same graph, whoever asks", .run = same_graph});
  cases.push_back({.name = "options at their limits", .run = model_options_at_limits, .ranks = 1});
  cases.push_back({.name = "no file or socket to write a graph", .run = pure_writing, .ranks = 1});
  cases.push_back({.name = "folders of others, written and read", .run = folders_of_others, .ranks = 1});
  add_op_cases(cases);
  add_training_cases(cases);
  add_decoding_cases(cases);
  return cases;
}

const RegisterKind models({plugins::PluginKind::model, [] { return infos_of(model_cases()); },
                           [](Store& store, const MemberWords& words, std::string& before) {
                             go_through(model_cases(),
                                        ModelMember(store, words.directories, words.plugin, words.rank, words.settings),
                                        words, before);
                           }});

}  // namespace
}  // namespace shardrun::conformance
