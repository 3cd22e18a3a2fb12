#include "core/runtime/interpreter.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "core/device/elements.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/model_cases.h"
#include "tests/support/parts.h"
#include "tests/support/plans.h"
#include "tests/support/ring.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// The bytes sent, without programs that were not called and transfers that sent nothing.
partition::SentBytes nonzero(partition::SentBytes sent) {
  for (auto& [axis, collectives] : sent) {
    std::erase_if(collectives, [](const auto& entry) { return entry.second == 0; });
  }
  std::erase_if(sent, [](const auto& entry) { return entry.second.empty(); });
  return sent;
}

/// All ranks of a model, on whole tensors.
class Ranks {
 public:
  Ranks(const ModelCase& model, const plan::Plan& plan, const char* device,
        std::optional<runtime::Fault> fault = std::nullopt)
      : graph_(model.graph),
        device_(device::Device::find(device)),
        interpreter_(graph_, partition::split(graph_, plan), device_, 1, fault),
        planned_(interpreter_.ranks()) {}

  void load(const States& states) {
    for (std::size_t rank = 0; rank < interpreter_.ranks(); ++rank) {
      for (const graph::StateId s : states.ids()) {
        write_part(states[s], interpreter_.rank(rank).state(s));
      }
    }
  }

  /// The function's outputs on the last rank.
  std::vector<Tensor> call(const Call& call, bool last) {
    std::vector<Tensor> outputs;
    for (std::size_t rank = 0; rank < interpreter_.ranks(); ++rank) {
      runtime::Executor& executor = interpreter_.rank(rank);
      const std::size_t program = executor.find(call.function->name, call.function->rows, last);
      for (std::size_t i = 0; i < call.inputs.size(); ++i) {
        write_part(call.inputs[i], executor.input(program, call.function->inputs[i].name));
      }
    }
    interpreter_.run(call.function->name, call.function->rows, last, call.scalars);
    for (std::size_t rank = 0; rank < interpreter_.ranks(); ++rank) {
      const partition::Programs& programs = interpreter_.programs(rank);
      partition::add_sent_bytes(planned_[rank], programs,
                                programs.find(call.function->name, call.function->rows, last));
    }
    runtime::Executor& executor = interpreter_.rank(interpreter_.ranks() - 1);
    const std::size_t program = executor.find(call.function->name, call.function->rows, last);
    for (const graph::Port& port : call.function->outputs) {
      const graph::TensorType& type = call.function->values[port.value].type;
      outputs.push_back(read_view(type, executor.output(program, port.name)));
    }
    return outputs;
  }

  /// The whole tensor that the ranks' parts make together. Replicas must be equal.
  [[nodiscard]] Tensor gather(graph::StateId state, bool& replicas_agree) {
    Tensor whole = zeros(graph_.states[state].type);
    std::vector<int> filled(whole.values.size(), 0);
    for (std::size_t rank = 0; rank < interpreter_.ranks(); ++rank) {
      const device::TensorView part = interpreter_.rank(rank).state(state);
      replicas_agree = gather_part(part, whole, filled) && replicas_agree;
    }
    replicas_agree = std::all_of(filled.begin(), filled.end(), [](int count) { return count > 0; }) && replicas_agree;
    return whole;
  }

  /// Whether every rank has sent what its programs say, and what a ring passes on.
  [[nodiscard]] bool sent_as_planned() {
    for (std::size_t rank = 0; rank < interpreter_.ranks(); ++rank) {
      if (nonzero(interpreter_.rank(rank).sent()) != nonzero(planned_[rank]) ||
          !ring_agrees(interpreter_.programs(rank))) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] runtime::Interpreter& interpreter() { return interpreter_; }

 private:
  const graph::Graph& graph_;
  const device::Device& device_;
  runtime::Interpreter interpreter_;
  std::vector<partition::SentBytes> planned_;
};

/// The norm of a − b, relative to that of b, but at least to 1e-6.
double distance(const Tensor& a, const Tensor& b) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    difference += (a.values[i] - b.values[i]) * (a.values[i] - b.values[i]);
    size += b.values[i] * b.values[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(size), 1e-6);
}

struct NamedPlan {
  std::string name;
  plan::Plan plan;
};

std::vector<NamedPlan> plans() {
  std::vector<NamedPlan> plans;
  for (const std::uint32_t ranks : {1U, 2U, 3U, 4U}) {
    plans.push_back({"data " + std::to_string(ranks), data_parallel(ranks, 400 * ranks)});
    plans.push_back({"model " + std::to_string(ranks), tensor_parallel(ranks)});
  }
  plans.push_back(
      {"both", plan_of({{"data", 2}, {"model", 2}},
                       {{"batch", {"data"}}, {"heads", {"model"}}, {"mlp", {"model"}}, {"vocab", {"model"}}})});
  plans.push_back({"batch and hidden over two axes each",
                   plan_of({{"a", 2}, {"b", 2}, {"c", 2}}, {{"batch", {"b", "a"}}, {"mlp", {"c", "a"}}}, 1 << 20)});
  plans.push_back({"what the ops sum over",
                   plan_of({{"a", 2}, {"b", 3}}, {{"embed", {"a"}}, {"features", {"b"}}, {"seq", {"b"}}})});
  plans.push_back({"cells", plan_of({{"x", 3}}, {{"x", {"x"}}})});
  plans.push_back({"cells and columns", plan_of({{"a", 2}, {"b", 3}}, {{"x", {"b"}}, {"y", {"a"}}})});
  return plans;
}

/// Plans that place tensors and cut points, which are the graph's own.
std::vector<NamedPlan> placed_plans(const graph::Graph& graph) {
  plan::Plan sequence = tensor_parallel(2);
  for (const graph::CutPoint& point : graph.cut_points) {
    sequence.cut_points.push_back({point.name, {{}, {"model"}, {}}});
  }
  plan::Plan optimizer = data_parallel(3);
  plan::Plan stored = data_parallel(2);
  for (const graph::State& state : graph.states) {
    if (state.kind == graph::StateKind::parameter) {
      plan::DimSplits dims(state.type.shape.size());
      dims[0] = {"data"};
      optimizer.tensors.push_back({state.name, plan::TensorRole::optimizer, dims});
      stored.tensors.push_back({state.name, plan::TensorRole::store, dims});
      stored.tensors.push_back({state.name, plan::TensorRole::use, plan::DimSplits(state.type.shape.size())});
    }
  }
  return {{"sequence between blocks", sequence},
          {"optimizer's states split", optimizer},
          {"everything stored split", stored}};
}

bool is_last(const std::vector<Call>& calls, std::size_t c) {
  return c + 1 == calls.size() || calls[c + 1].function->name != calls[c].function->name;
}

struct Comparison {
  double worst = 0;  ///< the largest distance of any state or output from the whole function's
  bool replicas_agree = true;
};

/// Compares all ranks with the whole function, over two steps.
Comparison compare(const ModelCase& model, Ranks& ranks, const char* device) {
  States expected = first_states(model.graph);
  ranks.load(expected);
  const std::vector<Call> calls = calls_of(model, 2);
  Comparison comparison;
  double& worst = comparison.worst;
  for (std::size_t c = 0; c < calls.size(); ++c) {
    INFO(calls[c].function->name << " of " << calls[c].function->rows << " rows, step " << calls[c].scalars.step);
    const std::vector<Tensor> outputs = interpret(calls[c], device::Device::find(device), expected);
    const bool last = is_last(calls, c);
    const std::vector<Tensor> found = ranks.call(calls[c], last);
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      worst = std::max(worst, distance(found[o], outputs[o]));
    }
    for (const graph::StateId s : expected.ids()) {
      worst = last ? std::max(worst, distance(ranks.gather(s, comparison.replicas_agree), expected[s])) : worst;
    }
  }
  return comparison;
}

/// Whether only rounding differs. Adam makes rounding larger if the true gradient of a bias is zero.
bool agrees(const ModelCase& model, Ranks& ranks, const char* device) {
  const Comparison comparison = compare(model, ranks, device);
  return comparison.worst < 1e-8 && comparison.replicas_agree;
}

}  // namespace

TEST_CASE("a graph split over ranks computes the same as the whole graph", "[interpreter]") {
  std::size_t first = 0;  // if only every `stride`th plan runs: other plans for each model
  for (const ModelCase& model : model_cases()) {
    std::vector<NamedPlan> all = plans();
    if (!model.microbatch_rows.empty() && model.name.starts_with("gpt")) {
      const std::vector<NamedPlan> placed = placed_plans(model.graph);
      all.insert(all.end(), placed.begin(), placed.end());
    }
    constexpr auto stride = depth<std::size_t>(1, 1, 4);
    for (std::size_t p = first++ % stride; p < all.size(); p += stride) {
      const NamedPlan& plan = all[p];
      DYNAMIC_SECTION(model.name << ", " << plan.name) {
        Ranks ranks(model, plan.plan, "reference");
        CHECK(agrees(model, ranks, "reference"));
        CHECK(ranks.sent_as_planned());
      }
    }
  }
}

namespace {

/// The numbers of the transfers that a case's calls make and whose results show: the maximum in a softmax only shifts
/// its exponents, so that any other number there gives the same.
std::vector<std::size_t> visible_transfers(const ModelCase& model, Ranks& ranks) {
  const partition::Programs& programs = ranks.interpreter().programs(0);
  const std::vector<Call> calls = calls_of(model, 1);
  std::vector<std::size_t> visible;
  std::size_t number = 0;
  for (const partition::Program& program : programs.programs) {
    bool called = false;
    for (std::size_t c = 0; c < calls.size(); ++c) {
      const graph::Function& function = *calls[c].function;
      called = called || &programs.find(function.name, function.rows, is_last(calls, c)) == &program;
    }
    for (const partition::Transfer& transfer : program.transfers) {
      if (called && transfer.reduction == Reduction::sum) {
        visible.push_back(number);
      }
      ++number;
    }
  }
  return visible;
}

const partition::Transfer& transfer_at(const partition::Programs& programs, std::size_t number) {
  std::size_t program = 0;
  while (number >= programs.programs[program].transfers.size()) {
    number -= programs.programs[program].transfers.size();
    ++program;
  }
  return programs.programs[program].transfers[partition::TransferId(number)];
}

/// Whether a fault of this kind changes the data. An empty block may change places with another one.
bool is_visible(const partition::Transfer& transfer, runtime::Fault::Kind kind) {
  const auto empty = [](const std::vector<std::int64_t>& counts) {
    return counts.size() > 1 && (counts[0] == 0 || counts[1] == 0);
  };
  return kind != runtime::Fault::Kind::swap || !(empty(transfer.recv_counts) || empty(transfer.send_counts));
}

}  // namespace

TEST_CASE("every fault in a transfer changes a result", "[interpreter]") {
  const workload::OptimizerSettings optimizer{.weight_decay = 0.1, .clip = 0.5};
  const ModelCase gpt = training_case(
      "gpt", "gpt",
      {{"layers", "1"}, {"heads", "2"}, {"width", "4"}, {"context", "3"}, {"bias", "true"}, {"tied", "false"}},
      {.vocab = 5},
      {.batch = 3, .microbatches = 2, .eval_rows = 2, .eval_samples = 3, .predict = true, .optimizer = optimizer});
  const ModelCase mlp = training_case("mlp", "mlp", {{"hidden", "9"}}, {.features = 5, .outputs = 3},
                                      {.batch = 6, .microbatches = 4, .optimizer = optimizer});
  for (const ModelCase* model : {&gpt, &mlp}) {
    std::vector<NamedPlan> all = {{"data 2", data_parallel(2, 400)}, {"model 2", tensor_parallel(2)}};
    if (model == &gpt) {
      const std::vector<NamedPlan> placed = placed_plans(model->graph);
      all.insert(all.end(), placed.begin(), placed.end());
    }
    for (std::size_t p = 0; p < all.size(); p += depth<std::size_t>(1, 1, 4)) {
      const NamedPlan& plan = all[p];
      Ranks sound(*model, plan.plan, "reference");
      const std::vector<std::size_t> transfers = visible_transfers(*model, sound);
      REQUIRE_FALSE(transfers.empty());
      for (std::size_t t = 0; t < transfers.size(); t += depth<std::size_t>(1, 3, 50)) {
        const std::size_t transfer = transfers[t];
        for (const auto kind : {runtime::Fault::Kind::omit, runtime::Fault::Kind::swap, runtime::Fault::Kind::scale}) {
          const partition::Transfer& hit = transfer_at(sound.interpreter().programs(0), transfer);
          if (!is_visible(hit, kind)) {
            continue;
          }
          INFO(model->name << ", " << plan.name << ", transfer " << transfer << " of " << hit.name << ", fault "
                           << static_cast<int>(kind));
          Ranks ranks(*model, plan.plan, "reference", runtime::Fault{kind, transfer});
          CHECK_FALSE(agrees(*model, ranks, "reference"));
        }
      }
    }
  }
}

namespace {

/// The case with bf16 in place of float32 in every state and value.
ModelCase in_bf16(ModelCase model) {
  const auto halve = [](graph::TensorType& type) {
    type.dtype = type.dtype == graph::DType::f32 ? graph::DType::bf16 : type.dtype;
  };
  for (const graph::StateId s : model.graph.states.ids()) {
    halve(model.graph.states[s].type);
  }
  for (graph::Function& function : model.graph.functions) {
    for (const graph::ValueId v : function.values.ids()) {
      halve(function.values[v].type);
    }
  }
  return model;
}

/// Elements of the states that bf16 does not have, after one step of all ranks on the reference device.
std::size_t count_unrounded(const ModelCase& model, const plan::Plan& plan) {
  Ranks ranks(model, plan, "reference");
  ranks.load(first_states(model.graph));
  const std::vector<Call> calls = calls_of(model, 1);
  for (std::size_t c = 0; c < calls.size(); ++c) {
    (void)ranks.call(calls[c], is_last(calls, c));
  }
  std::size_t unrounded = 0;
  for (const graph::StateId s : model.graph.states.ids()) {
    if (model.graph.states[s].kind == graph::StateKind::gradient) {
      bool replicas_agree = true;
      std::vector<double> values = ranks.gather(s, replicas_agree).values;
      const std::vector<double> found = values;
      device::round_elements(graph::DType::bf16, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        unrounded += values[i] != found[i] ? 1 : 0;
      }
    }
  }
  return unrounded;
}

}  // namespace

TEST_CASE("sums over ranks of bf16 are rounded to bf16 on a device that stores float64", "[interpreter]") {
  const std::vector<ModelCase>& models = model_cases();
  const ModelCase model =
      in_bf16(*std::ranges::find_if(models, [](const ModelCase& each) { return !each.microbatch_rows.empty(); }));
  plan::Plan reduced = data_parallel(3);
  for (const graph::State& state : model.graph.states) {
    if (state.kind == graph::StateKind::parameter) {
      plan::DimSplits dims(state.type.shape.size());
      dims[0] = {"data"};
      reduced.tensors.push_back({state.name, plan::TensorRole::optimizer, dims});
    }
  }

  CHECK(count_unrounded(model, data_parallel(3)) == 0);
  CHECK(count_unrounded(model, reduced) == 0);
}
