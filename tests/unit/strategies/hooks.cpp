#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>

#include "core/compile/describe.h"
#include "core/runtime/interpreter.h"
#include "core/verify/verify.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/strategies/agreement.h"
#include "tests/unit/strategies/hooked.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;
using graph::StateId;
using graph::StateKind;

// Strategies with hooks, in this process: those of examples/plugins, and one that uses everything that hooks can use.

namespace {

const std::size_t first_rank = 0;

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double off = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    off += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(off / std::max(size, 1e-30));
}

VerifyCase sgd_case(std::int64_t batch, std::int64_t microbatches, workload::OptimizerSettings optimizer = {}) {
  return VerifyCase(training_case("mlp", "mlp", {{"hidden", "9"}}, {.features = 5, .outputs = 3},
                                  {.batch = batch, .microbatches = microbatches, .optimizer = optimizer}));
}

const workload::OptimizerSettings plain_sgd{.kind = workload::OptimizerSettings::Kind::sgd};

}  // namespace

TEST_CASE("hooks that sum gradients in other ways agree with the reference", "[strategies]") {
  for (const char* mode : {"sum", "scatter", "swap"}) {
    for (const VerifyCase& model : {plain_gpt(), mlp_of_numbers()}) {
      for (const std::uint32_t data : {1U, 2U, 3U, 8U}) {
        check_agrees(model, hooked({{"data", data}}, mode));
      }
    }
    check_agrees(full_gpt(), hooked({{"data", 3}, {"model", 2}}, mode));
    check_agrees(five_layers(), hooked({{"pipe", 2}, {"data", 2}}, mode, {{"schedule", "1f1b"}}));
    check_agrees(plain_gpt(), hooked({{"pipe", 2}, {"data", 2}, {"model", 2}}, mode, {{"schedule", "zb-h1"}}));
    check_agrees(plain_gpt(), hooked({{"data", 3}}, mode, {{"only", "layer.1/*"}}));
  }
}

TEST_CASE("top-k with ratio 1 agrees with the reference", "[strategies]") {
  for (const VerifyCase& model : {plain_gpt(), full_gpt(), mlp_of_labels()}) {
    check_agrees(model, {"topk", ranks(1), {{"ratio", 1.0}}});
    check_agrees(model, {"topk", ranks(3), {{"ratio", 1.0}}});
  }
}

TEST_CASE("top-k sends its share of the elements and keeps the rest", "[strategies]") {
  const Split whole(plain_gpt(), {"topk", ranks(3), {{"ratio", 1.0}}});
  const Split split(plain_gpt(), {"topk", ranks(3), {{"ratio", 0.05}}});
  std::map<std::string, std::vector<float>> gradients;
  const auto parameter = [&](StateId state) {
    const auto& states = split.checked.model.graph.states;
    return states[states[state].of_parameter].name;
  };
  whole.interpret(1, [&](std::int64_t, verify::Moment moment, runtime::Interpreter& ranks) {
    for (const StateId state : states_of(whole, StateKind::gradient)) {
      if (moment == verify::Moment::gradients) {
        gradients[parameter(state)] = values_of(ranks, first_rank, state);
      }
    }
  });

  split.interpret(1, [&](std::int64_t, verify::Moment moment, runtime::Interpreter& ranks) {
    if (moment != verify::Moment::gradients) {
      return;
    }
    std::map<std::string, std::vector<float>> kept;
    for (const StateId state : states_of(split, StateKind::hook_state)) {
      std::vector<float>& sum = kept[parameter(state)];
      for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
        const std::vector<float> own = values_of(ranks, rank, state);
        sum.resize(own.size());
        std::transform(sum.begin(), sum.end(), own.begin(), sum.begin(), std::plus<>());
      }
    }
    std::size_t elements = 0;
    std::size_t sent = 0;
    for (const StateId state : states_of(split, StateKind::gradient)) {
      INFO(parameter(state));
      const std::vector<float> made = values_of(ranks, first_rank, state);
      std::vector<float> both = kept.at(parameter(state));
      std::transform(both.begin(), both.end(), made.begin(), both.begin(), std::plus<>());
      CHECK(distance(both, gradients.at(parameter(state))) < 1e-5);
      elements += made.size();
      sent += static_cast<std::size_t>(std::count_if(made.begin(), made.end(), [](float x) { return x != 0; }));
    }
    CHECK(sent > 0);
    CHECK(sent <= ranks.ranks() * elements / 20);
  });
}

TEST_CASE("elements that top-k has not sent are sent later, also on one rank", "[strategies]") {
  const std::uint32_t members = GENERATE(1U, 2U);
  const Split split(sgd_case(6, 1, plain_sgd), {"topk", ranks(members), {{"ratio", 0.01}}});
  CHECK(states_of(split, StateKind::hook_state).size() == states_of(split, StateKind::parameter).size());
  std::map<StateId, std::vector<float>> begun;
  split.interpret(30, [&](std::int64_t step, verify::Moment moment, runtime::Interpreter& ranks) {
    for (const StateId state : states_of(split, StateKind::parameter)) {
      if (step == 0 && moment == verify::Moment::begin) {
        begun[state] = values_of(ranks, first_rank, state);
      } else if (step == 29 && moment == verify::Moment::end) {
        INFO(split.checked.model.graph.states[state].name);
        CHECK(values_of(ranks, first_rank, state) != begun[state]);
      } else if (step == 0 && moment == verify::Moment::end) {
        const std::vector<float> after = values_of(ranks, first_rank, state);
        const auto kept = std::inner_product(after.begin(), after.end(), begun[state].begin(), 0, std::plus<>(),
                                             [](float a, float b) { return a == b ? 1 : 0; });
        CHECK(kept > 0);  // the step is not that of plain gradients, which have no zeros here
      }
    }
  });
}

namespace {

/// Local SGD by hand: every replica trains alone on its share of each batch, and every few steps all replicas take
/// the mean.
class Replicas {
 public:
  Replicas(const workload::OptimizerSettings& optimizer, std::vector<std::int64_t> shares)
      : shares_(std::move(shares)) {
    for (const std::int64_t share : shares_) {
      cases_.push_back(std::make_unique<VerifyCase>(sgd_case(share, 1, optimizer)));
      const graph::Graph& graph = cases_.back()->model.graph;
      executors_.push_back(std::make_unique<runtime::Executor>(
          partition::programs_of(graph, device::Device::find("cpu"), 1), device::Device::find("cpu")));
      runtime::initialize(graph, cases_.back()->workload().seed, *executors_.back());
    }
  }

  void step(std::int64_t step, bool meet) {
    const std::int64_t batch = std::accumulate(shares_.begin(), shares_.end(), std::int64_t{0});
    std::int64_t first = step * batch;
    for (std::size_t r = 0; r < shares_.size(); ++r) {
      const verify::Workload workload = cases_[r]->workload();
      verify::Call call = verify::gradient_calls(workload, step).front();
      call.scalars.first_sample = first;
      const std::size_t program = executors_[r]->find("micro", shares_[r]);
      verify::feed(workload, call, *executors_[r], program);
      executors_[r]->run(program, call.scalars);
      executors_[r]->run(executors_[r]->find("update", 0), verify::update_call(workload, step).scalars);
      first += shares_[r];
    }
    const auto& states = cases_.front()->model.graph.states;
    for (const StateId s : states.ids()) {
      if (meet && states[s].kind == StateKind::parameter) {
        take_mean(s);
      }
    }
  }

  [[nodiscard]] std::vector<float> values(std::size_t replica, StateId s) const {
    const device::TensorView view = state(replica, s);
    const auto* data = static_cast<const float*>(view.data);
    return {data, data + view.elements()};
  }

 private:
  [[nodiscard]] device::TensorView state(std::size_t replica, StateId s) const { return executors_[replica]->state(s); }

  void take_mean(StateId s) {
    for (std::int64_t i = 0; i < state(0, s).elements(); ++i) {
      double sum = 0;
      for (std::size_t r = 0; r < shares_.size(); ++r) {
        sum += static_cast<double>(static_cast<float*>(state(r, s).data)[i]);
      }
      for (std::size_t r = 0; r < shares_.size(); ++r) {
        static_cast<float*>(state(r, s).data)[i] = static_cast<float>(sum / static_cast<double>(shares_.size()));
      }
    }
  }

  std::vector<std::int64_t> shares_;
  std::vector<std::unique_ptr<VerifyCase>> cases_;
  std::vector<std::unique_ptr<runtime::Executor>> executors_;
};

}  // namespace

TEST_CASE("local SGD is replicas that train alone and average every few steps", "[strategies]") {
  const workload::OptimizerSettings momentum{
      .kind = workload::OptimizerSettings::Kind::sgd, .momentum = 0.9, .weight_decay = 0.1, .clip = 0.5};
  for (const workload::OptimizerSettings& optimizer : {plain_sgd, momentum, workload::OptimizerSettings{.clip = 0.1}}) {
    const Split split(sgd_case(8, 1, optimizer), {"local_sgd", ranks(3), {{"every", std::int64_t{2}}}});
    Replicas replicas(optimizer, {3, 3, 2});
    split.interpret(5, [&](std::int64_t step, verify::Moment moment, runtime::Interpreter& ranks) {
      if (moment != verify::Moment::end) {
        return;
      }
      const bool meets = step % 2 == 1;
      replicas.step(step, meets);
      for (const StateId state : states_of(split, StateKind::parameter)) {
        for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
          INFO("step " << step << ", rank " << rank << ", " << split.checked.model.graph.states[state].name);
          CHECK(distance(values_of(ranks, rank, state), replicas.values(rank, state)) < 1e-6);
          CHECK((values_of(ranks, rank, state) == values_of(ranks, 0, state)) == (meets || rank == 0));
        }
      }
    });
  }
}

TEST_CASE("hooks of the earlier interface are left out along an axis of one rank, with a notice", "[strategies]") {
  const plugins::Strategy earlier = plugins::Strategy::open({SHARDRUN_HOOKED_PLUGINS "/earlier"}, "hooked");
  const VerifyCase model = plain_gpt();
  plugins::StrategyRequest request = compile::describe(model.model.graph, model.model.microbatch_rows);
  const auto plan_over = [&](std::uint32_t data) {
    request.job.ranks = data;
    request.job.mesh = {{"data", data}};
    return earlier.make_plan(request);
  };
  CHECK(plan_over(2).hooks.size() == 1);
  CHECK(plan_over(2).notices.empty());
  CHECK(plan_over(1).hooks.empty());
  REQUIRE(plan_over(1).notices.size() == 1);
  CHECK_THAT(plan_over(1).notices.front(),
             Contains("was built for plugin interface 1.7: its hook sync_gradients is left out"));
}

TEST_CASE("the placement of a varying state says that it varies", "[strategies]") {
  const Split split(plain_gpt(), {"local_sgd", ranks(2), {{"every", std::int64_t{1}}}});
  for (const StateId state : states_of(split, StateKind::gradient)) {
    CHECK(to_string(split.partition.placements.states[state], split.partition.placements.mesh)
              .ends_with(" varying data"));
  }
}

TEST_CASE("a hook after a step is called every so many steps, with its states, also on one rank", "[strategies]") {
  const std::uint32_t data = GENERATE(1U, 2U);
  const Split split(plain_gpt(), hooked({{"data", data}, {"model", 2}}, "count"));
  const std::vector<StateId> kept = states_of(split, StateKind::hook_state);
  REQUIRE(kept.size() == 2 * states_of(split, StateKind::parameter).size());
  split.interpret(5, [&](std::int64_t step, verify::Moment moment, runtime::Interpreter& ranks) {
    if (moment != verify::Moment::end) {
      return;
    }
    for (const StateId state : kept) {
      const std::string& name = split.checked.model.graph.states[state].name;
      for (std::size_t rank = 0; rank < ranks.ranks() && name.starts_with("visits/"); ++rank) {
        const std::vector<float> visits = values_of(ranks, rank, state);
        CHECK(std::all_of(visits.begin(), visits.end(),
                          [&](float x) { return x == static_cast<float>((step + 1) / 2); }));
      }
    }
  });
  CHECK(split.partition.hook_follows(1));
  CHECK_FALSE(split.partition.hook_follows(2));
}

namespace {

/// The states that differ between ranks that should hold the same.
std::vector<std::string> parted(const VerifyCase& model, const Choice& choice) {
  Split split(model, choice);
  const verify::Report report =
      verify::verify_interpreted(split.checked.workload(), split.partition, {.hooks = split.hooks.get()});
  std::vector<std::string> names;
  for (const verify::Difference& each : report.worst()) {
    if (each.what == verify::What::replica && !each.passed()) {
      names.push_back(each.tensor + ": " + each.note);
    }
  }
  CHECK(report.compared() > 0);
  return names;
}

}  // namespace

TEST_CASE("a hook that decides over a whole group decides the same on all copies", "[strategies]") {
  CHECK(parted(plain_gpt(), hooked({{"data", 2}, {"model", 2}}, "choose")) == std::vector<std::string>{});
  CHECK(parted(full_gpt(), hooked({{"data", 2}, {"model", 3}}, "choose")) == std::vector<std::string>{});
  CHECK(parted(five_layers(), hooked({{"pipe", 2}, {"data", 2}}, "choose")) == std::vector<std::string>{});
  CHECK(parted(plain_gpt(), hooked({{"pipe", 2}, {"data", 2}, {"model", 2}}, "choose")) == std::vector<std::string>{});
}

TEST_CASE("a hook is told the number of samples behind its gradients", "[strategies]") {
  // 3, 2 and 2 samples, over replica 2 × data 2: of the three 2 and 1, of the two 1 and 1; and of these 1 and 1,
  // 1 and 0.
  const Split split(plain_gpt(),
                    hooked({{"replica", 2}, {"data", 2}, {"model", 2}}, "weigh", {{"only", "final_norm/*"}}));
  const StateId gain = split.checked.model.graph.find_state("gradients/final_norm/gain");
  split.interpret(1, [&](std::int64_t, verify::Moment moment, runtime::Interpreter& ranks) {
    for (std::size_t rank = 0; rank < ranks.ranks() && moment == verify::Moment::gradients; ++rank) {
      const std::size_t along_data = rank / 2 % 2;
      INFO("rank " << rank);
      CHECK(values_of(ranks, rank, gain).front() == Approx((along_data == 0 ? 6.0F : 1.0F) / 7.0F));
    }
  });
}

TEST_CASE("a hook's states may begin with the values of its tensors", "[strategies]") {
  const Split split(plain_gpt(), hooked({{"data", 2}, {"model", 2}}, "count"));
  const auto& states = split.checked.model.graph.states;
  split.interpret(2, [&](std::int64_t step, verify::Moment moment, runtime::Interpreter& ranks) {
    for (const StateId state : states_of(split, StateKind::hook_state)) {
      const graph::State& kept = states[state];
      for (std::size_t rank = 0; rank < ranks.ranks() && step == 0 && moment == verify::Moment::begin; ++rank) {
        const bool same = values_of(ranks, rank, state) == values_of(ranks, rank, kept.of_parameter);
        CHECK(same == kept.name.starts_with("anchor/"));
      }
    }
  });
}

TEST_CASE("some tensors may vary if no gradients are clipped by the norm of all", "[strategies]") {
  const auto model = [](double clip) {
    return VerifyCase(training_case("gpt", "gpt", {{"layers", "2"}, {"heads", "2"}, {"width", "8"}, {"context", "6"}},
                                    {.vocab = 11}, {.batch = 4, .microbatches = 1, .optimizer = {.clip = clip}}));
  };
  const Split split(model(0), hooked({{"data", 2}}, "own of some"));
  split.interpret(2, [&](std::int64_t step, verify::Moment moment, runtime::Interpreter& ranks) {
    for (const StateId state : states_of(split, StateKind::parameter)) {
      const bool varies = split.checked.model.graph.states[state].name.starts_with("layer.1/");
      if (step == 1 && moment == verify::Moment::end) {
        CHECK((values_of(ranks, 0, state) == values_of(ranks, 1, state)) == !varies);
      }
    }
  });
  CHECK_THAT(refusal(model(0.5), hooked({{"data", 2}}, "own of some")),
             Contains("is the same along mesh axis 'data', but what function update writes to it varies there") &&
                 Contains("[train] clip"));
}

TEST_CASE("an invalid exchange of a hook is refused before anything runs", "[strategies]") {
  const VerifyCase model = plain_gpt();
  const auto refused = [&](const char* mode) { return refusal(model, hooked({{"data", 2}}, mode)); };
  CHECK_THAT(refused("unknown buffer"), Contains("strategy 'hooked', hook sync_gradients of ") &&
                                            Contains("add_exchange: there is no buffer 7: the last is 0"));
  CHECK_THAT(refused("unknown kind"), Contains("there is no exchange of kind 9"));
  CHECK_THAT(refused("unknown element"), Contains("there is no element type 9"));
  CHECK_THAT(refused("empty buffer"), Contains("buffer 1 has 0 elements, expected 1 or more"));
  CHECK_THAT(refused("gather in place"), Contains("sends and receives buffer 0: only an all_reduce is in place"));
  CHECK_THAT(refused("wrong count"), Contains("which over 2 members is no exchange of kind 2"));
  CHECK_THAT(refused("uneven blocks"), Contains("it sends 3 elements and receives 3"));
  CHECK_THAT(refused("sum of whole numbers"), Contains("buffer 1 has whole numbers, and what is summed is float32"));
  CHECK_THAT(refused("mixed elements"), Contains("buffers 0 and 1 have different elements"));
  CHECK_THAT(refused("throws"), Contains("hook sync_gradients of ") && Contains(": no hook today"));
  CHECK_THAT(refused("swallowed"), Contains("there is no buffer 7"));
  CHECK_THAT(refused("no mesh"), Contains("sync_gradients('*')") && Contains("did you mean 'data'"));
  CHECK_THAT(refused("name taken"), Contains("keeps a hook state 'gradients', and the model has a "
                                             "gradients/embedding/tokens of that name"));
  CHECK_THAT(refusal(model, hooked({{"pipe", 2}, {"data", 2}}, "along pipe")),
             Contains("plans the hook after_step along mesh axis 'pipe', which is that of the pipeline's stages"));
  CHECK_THAT(refused("zero3"), Contains("the hook sync_gradients stands for an all_reduce over mesh axis 'data', and "
                                        "there is none of embedding/tokens"));
  CHECK_THAT(refused("after zero3"), Contains("the hook after_step over mesh axis 'data' is given whole tensors, and "
                                              "embedding/tokens is stored as [- | -] flat data"));
  CHECK_THAT(refused("varies split"), Contains("varies over mesh axis 'data', which splits it too"));
}

TEST_CASE("a failing hook gives the reason", "[strategies]") {
  const Split split(plain_gpt(), hooked({{"data", 2}}, "fails"));
  CHECK_THAT(
      error_of([&] { split.interpret(1, [](std::int64_t, verify::Moment, runtime::Interpreter&) {}); }),
      Contains("hook sync_gradients of ") && Contains("call 3: strategy 'hooked': these gradients are not to my"));
}

TEST_CASE("hooks over an axis of one rank are called like others", "[strategies]") {
  CHECK_THAT(refusal(plain_gpt(), hooked({{"data", 1}, {"model", 2}}, "throws")), Contains("no hook today"));
  const Split split(plain_gpt(), hooked({{"data", 1}}, "fails"));
  CHECK_THAT(error_of([&] { split.interpret(1, [](std::int64_t, verify::Moment, runtime::Interpreter&) {}); }),
             Contains("strategy 'hooked': these gradients are not to my"));
}
