#include <cmath>
#include <functional>
#include <limits>

#include "core/verify/compare.h"
#include "core/verify/verify.h"
#include "tests/support/catch.h"
#include "tests/unit/verify/support.h"

// What a comparison says of a run that is right but for one thing.

using namespace shardrun;
using namespace shardrun::test;
using verify::Moment;
using verify::What;

namespace {

struct At {
  std::int64_t step = 0;
  Moment moment = Moment::begin;
  std::int64_t rank = 0;

  bool operator==(const At&) const = default;
};

using Alter = std::function<void(const At& at, verify::Snapshot& snapshot)>;

verify::Report report_of(const verify::Workload& workload, const plan::Plan& plan, const Alter& alter,
                         std::int64_t steps) {
  const partition::Partition partition = partition::split(workload.graph, plan);
  verify::Comparison comparison(workload, plan.ranks(), 1);
  verify::interpret(workload, partition, {.steps = steps},
                    [&](std::int64_t step, Moment moment, runtime::Interpreter& ranks) {
                      comparison.add(step, moment, [&](std::int64_t rank) {
                        const runtime::Executor& executor = ranks.rank(static_cast<std::size_t>(rank));
                        verify::Snapshot snapshot = verify::take_snapshot(workload.graph, executor, moment);
                        alter({step, moment, rank}, snapshot);
                        return snapshot;
                      });
                    });
  return comparison.report();
}

verify::Report report_of(const VerifyCase& checked, const plan::Plan& plan, const Alter& alter,
                         std::int64_t steps = 2) {
  return report_of(checked.workload(), plan, alter, steps);
}

std::vector<double>& values_of(verify::Snapshot& snapshot, const VerifyCase& checked, std::string_view state) {
  return snapshot.parts[checked.model.graph.find_state(state)]->values;
}

/// The difference of this tensor; null if there was none to compare.
const verify::Difference* find(const std::vector<verify::Difference>& worst, std::string_view tensor, What what) {
  for (const verify::Difference& difference : worst) {
    if (difference.tensor == tensor && difference.what == what) {
      return &difference;
    }
  }
  return nullptr;
}

bool failed(const verify::Report& report, std::string_view tensor, What what) {
  const std::vector<verify::Difference> worst = report.worst();
  const verify::Difference* found = find(worst, tensor, what);
  REQUIRE(found != nullptr);
  return !found->passed();
}

VerifyCase mlp() {
  return VerifyCase(training_case("mlp", "mlp", {{"hidden", "9"}}, {.features = 5, .outputs = 3},
                                  {.batch = 7, .microbatches = 3, .eval_rows = 3, .eval_samples = 5}));
}

constexpr const char* weights = "layer_0/weights";
constexpr const char* gradient = "gradients/layer_0/weights";
constexpr const char* moment = "first_moment/layer_0/weights";

}  // namespace

TEST_CASE("one wrong element of one gradient is found and named", "[verify]") {
  const VerifyCase checked = mlp();
  const verify::Report report = report_of(checked, data_parallel(2), [&](const At& at, verify::Snapshot& snapshot) {
    if (at.step == 1 && at.moment == Moment::gradients) {
      values_of(snapshot, checked, gradient)[19] *= 1.01;
    }
  });
  const std::vector<verify::Difference> worst = report.worst();
  const verify::Difference* found = find(worst, weights, What::gradient);
  REQUIRE(found != nullptr);
  CHECK_FALSE(found->passed());
  CHECK(found->step == 2);
  CHECK(found->ranks == std::vector<int>{0, 1});
  CHECK(found->note.starts_with("element [2, 1] is "));
  CHECK_FALSE(failed(report, "layer_1/weights", What::gradient));
  CHECK_FALSE(failed(report, gradient, What::replica));
}

TEST_CASE("a replica that differs in one bit is found, with the ranks that disagree", "[verify]") {
  const VerifyCase checked = mlp();
  const verify::Report report = report_of(checked, data_parallel(3), [&](const At& at, verify::Snapshot& snapshot) {
    if (at == At{0, Moment::end, 2}) {
      float value = static_cast<float>(values_of(snapshot, checked, weights)[7]);
      value = std::nextafter(value, 10.0F);
      values_of(snapshot, checked, weights)[7] = value;
    }
  });
  CHECK_FALSE(report.passed());
  const verify::Difference first = report.worst().front();
  CHECK(first.tensor == weights);
  CHECK(first.what == What::replica);
  CHECK(first.ranks == std::vector<int>{0, 2});
  CHECK(first.step == 1);
  CHECK(report.worst()[1].passed());
}

TEST_CASE("replicas with zero and minus zero differ", "[verify]") {
  const VerifyCase checked = mlp();
  const verify::Report report = report_of(checked, data_parallel(2), [&](const At& at, verify::Snapshot& snapshot) {
    if (at == At{0, Moment::begin, 1}) {
      values_of(snapshot, checked, moment)[0] = -0.0;
    }
  });
  CHECK(failed(report, moment, What::replica));
}

TEST_CASE("an element that no rank holds is found", "[verify]") {
  const VerifyCase checked = mlp();
  const verify::Report report = report_of(
      checked, tensor_parallel(2),
      [&](const At& at, verify::Snapshot& snapshot) {
        if (at == At{0, Moment::end, 1}) {
          const graph::StateId state = checked.model.graph.find_state(moment);
          snapshot.parts[state] = verify::Part{.box = {{0, 0}, {5, 0}}, .values = {}};
        }
      },
      1);
  const verify::Difference first = report.worst().front();
  CHECK(first.tensor == moment);
  CHECK(first.what == What::replica);
  CHECK(first.note == "no rank holds 20 of its 45 elements, the first at [0, 5]");
}

TEST_CASE("initial values that depend on the sharding are found", "[verify]") {
  const VerifyCase checked = mlp();
  const verify::Report report = report_of(checked, data_parallel(2), [&](const At& at, verify::Snapshot& snapshot) {
    if (at.step == 0 && at.moment == Moment::begin) {
      values_of(snapshot, checked, weights)[3] += 1e-6;
    }
  });
  CHECK(failed(report, weights, What::initial));
}

TEST_CASE("a state that changes between two steps is found", "[verify]") {
  const VerifyCase checked = mlp();
  const verify::Report report = report_of(checked, data_parallel(2), [&](const At& at, verify::Snapshot& snapshot) {
    if (at.step == 1 && at.moment == Moment::begin) {
      values_of(snapshot, checked, moment)[3] *= 1 + 1e-7;
    }
  });
  CHECK(failed(report, moment, What::update));
  CHECK_FALSE(failed(report, weights, What::update));
}

TEST_CASE("a wrong update, loss, norm or evaluation is found", "[verify]") {
  struct Wrong {
    const char* state;
    Moment moment;
    What what;
  };
  const VerifyCase checked = mlp();
  for (const Wrong& wrong :
       {Wrong{weights, Moment::end, What::update}, Wrong{moment, Moment::end, What::update},
        Wrong{"gradient_norm", Moment::end, What::gradient_norm}, Wrong{"loss", Moment::gradients, What::loss},
        Wrong{"loss", Moment::evaluation, What::evaluation}}) {
    for (const double factor : {1 + 1e-4, std::numeric_limits<double>::quiet_NaN()}) {
      INFO(wrong.state << " at " << to_string(wrong.moment) << " times " << factor);
      const verify::Report report = report_of(checked, data_parallel(2), [&](const At& at, verify::Snapshot& snapshot) {
        if (at.step == 1 && at.moment == wrong.moment) {
          for (double& value : values_of(snapshot, checked, wrong.state)) {
            value *= factor;
          }
        }
      });
      CHECK_FALSE(report.passed());
      CHECK(failed(report, wrong.state, wrong.what));
    }
  }
}

namespace {

/// What v's gradient is in a model with logits = x·W + (x·v)·w. If all of w is one, v adds the same number to each of a
/// sample's logits, which softmax does not see: the true gradient is zero. If w is small, v's gradient is as small, but
/// not zero.
enum class Gradient { zero, small };

void add_parameter(graph::Graph& graph, const char* name, std::vector<std::int64_t> shape,
                   std::vector<std::string> axes, const graph::Initializer& initializer) {
  graph.states.push_back(
      {.name = name, .type = {.shape = std::move(shape), .axes = std::move(axes)}, .initializer = initializer});
}

template <Gradient of_v>
void declare_blind(graph::Graph& graph, const workload::ModelSettings& settings) {
  using graph::Initializer;
  const workload::DataShape& data = settings.data;
  const Initializer normal{Initializer::Kind::normal, 0.3};
  const Initializer ones{Initializer::Kind::constant, 1};
  const Initializer small{Initializer::Kind::normal, 1e-5};
  add_parameter(graph, "W", {data.features, data.vocab}, {"features", "vocab"}, normal);
  add_parameter(graph, "v", {data.features, 1}, {"features", "one"}, normal);
  add_parameter(graph, "w", {1, data.vocab}, {"one", "vocab"}, of_v == Gradient::zero ? ones : small);
}

graph::Losses blind_losses(graph::FunctionBuilder& builder, const workload::ModelSettings& settings, std::int64_t rows,
                           bool) {
  const graph::Attributes product{{"contract", std::int64_t{1}}, {"transpose", std::int64_t{0}}};
  const graph::ValueId x =
      builder.input("inputs", {graph::DType::f32, {rows, settings.data.features}, {"batch", "features"}});
  const graph::ValueId seen = builder.call("matmul", {x, builder.state("W")}, product, "seen");
  const graph::ValueId shift = builder.call("matmul", {x, builder.state("v")}, product, "shift");
  const graph::ValueId shifts = builder.call("matmul", {shift, builder.state("w")}, product, "shifts");
  const graph::ValueId logits = builder.call("add", {seen, shifts}, {}, "logits");
  const graph::ValueId targets = builder.input("targets", {graph::DType::i32, {rows}, {"batch"}});
  const graph::ValueId highest = builder.call("row_max", {logits}, {}, "highest_logit");
  const std::vector<graph::ValueId> terms =
      builder.call_all("softmax_terms", {logits, highest, targets}, {}, "softmax_terms");
  return {.values = builder.call("token_loss", {highest, terms[0], terms[1]}, {}, "losses")};
}

template <Gradient of_v>
VerifyCase blind_case(std::int64_t batch, std::int64_t classes) {
  const workload::Model model{.name = "blind", .declare = declare_blind<of_v>, .losses = blind_losses};
  const workload::ModelSettings settings{.options = {}, .data = {.vocab = classes, .features = 6}};
  return VerifyCase({.name = "blind",
                     .graph = workload::build_training(model, settings, {.batch = batch, .microbatches = 2}),
                     .microbatch_rows = workload::microbatch_rows(batch, 2),
                     .vocabulary = static_cast<std::int32_t>(classes)});
}

/// The report if v's gradient is altered. `altered` gets each of its values and the largest of W's gradient.
verify::Report report_of_v(const VerifyCase& checked, const std::function<double(double v, double largest)>& altered) {
  return report_of(
      checked, data_parallel(2),
      [&](const At& at, verify::Snapshot& snapshot) {
        if (at.moment == Moment::gradients) {
          double largest = 0;
          for (const double value : values_of(snapshot, checked, "gradients/W")) {
            largest = std::max(largest, std::abs(value));
          }
          for (double& value : values_of(snapshot, checked, "gradients/v")) {
            value = altered(value, largest);
          }
        }
      },
      1);
}

double unaltered(double v, double) { return v; }

}  // namespace

TEST_CASE("if the true gradient is zero, only rounding errors pass", "[verify]") {
  for (const std::int64_t batch : {4, 512}) {
    for (const std::int64_t classes : {3, 65, 500}) {
      INFO(batch << " samples of " << classes << " classes");
      const VerifyCase checked = blind_case<Gradient::zero>(batch, classes);
      const verify::Report report = report_of_v(checked, unaltered);
      INFO(verify::to_text(report));
      CHECK(report.passed());
      CHECK(failed(report_of_v(checked, [](double v, double largest) { return v + largest / 10000; }), "v",
                   What::gradient));
    }
  }
}

TEST_CASE("a small gradient that is not zero is compared by its own size", "[verify]") {
  const VerifyCase checked = blind_case<Gradient::small>(64, 65);
  const verify::Report report = report_of_v(checked, unaltered);
  INFO(verify::to_text(report));
  CHECK(report.passed());
  CHECK(failed(report_of_v(checked, [](double, double) { return 0; }), "v", What::gradient));
  CHECK(failed(report_of_v(checked, [](double v, double) { return v * (1 + 2e-5); }), "v", What::gradient));
}

namespace {

VerifyCase gpt_with_biases() {
  return VerifyCase(training_case(
      "gpt", "gpt",
      {{"layers", "2"}, {"heads", "4"}, {"width", "32"}, {"context", "16"}, {"bias", "true"}, {"tied", "true"}},
      {.vocab = 65}, {.batch = 4, .optimizer = {.weight_decay = 0.1, .clip = 1.0}}));
}

/// A workload whose steps are the first of 2000 steps of warm-up.
verify::Workload warming_up(const VerifyCase& checked) {
  verify::Workload workload = checked.workload();
  workload.learning_rate = [](std::int64_t step) { return 6e-4 * static_cast<double>(step + 1) / 2000; };
  return workload;
}

}  // namespace

TEST_CASE("a small gradient of a large model is judged by its own size", "[verify]") {
  const VerifyCase checked = gpt_with_biases();
  const char* gain = "layer.0/attention_norm/gain";
  const verify::Report report = report_of(
      checked, data_parallel(2),
      [&](const At& at, verify::Snapshot& snapshot) {
        if (at.moment == Moment::gradients) {
          for (double& value : values_of(snapshot, checked, std::string("gradients/") + gain)) {
            value *= 1 + 2e-5;
          }
        }
      },
      1);
  const std::vector<verify::Difference> worst = report.worst();
  const verify::Difference* found = find(worst, gain, What::gradient);
  REQUIRE(found != nullptr);
  CHECK_FALSE(found->passed());
  CHECK(found->relative() == Approx(2e-5).epsilon(0.1));
}

TEST_CASE("an update as small as in warm-up is judged by its own size", "[verify]") {
  const VerifyCase checked = gpt_with_biases();
  const verify::Workload workload = warming_up(checked);
  const graph::Graph& graph = checked.model.graph;

  SECTION("as it is") {
    const verify::Report report = report_of(
        workload, data_parallel(2), [](const At&, verify::Snapshot&) {}, 3);
    INFO(verify::to_text(report));
    CHECK(report.passed());
  }

  SECTION("gains that never change") {
    const verify::Report report = report_of(
        workload, data_parallel(2),
        [&](const At&, verify::Snapshot& snapshot) {
          for (const graph::StateId s : graph.states.ids()) {
            if (snapshot.parts[s] && graph.states[s].name.ends_with("gain") &&
                graph.states[s].kind == graph::StateKind::parameter) {
              std::fill(snapshot.parts[s]->values.begin(), snapshot.parts[s]->values.end(), 1.0);
            }
          }
        },
        1);
    CHECK(failed(report, "final_norm/gain", What::update));
    CHECK(failed(report, "layer.1/attention_norm/gain", What::update));
  }

  SECTION("no weight decay") {
    const char* decayed = "layer.0/mlp/up/weights";
    std::vector<double> before;
    const verify::Report report = report_of(
        workload, data_parallel(2),
        [&](const At& at, verify::Snapshot& snapshot) {
          if (at.step == 2 && at.moment == Moment::begin) {
            before = values_of(snapshot, checked, decayed);
          }
          if (at.step == 2 && at.moment == Moment::end) {
            std::vector<double>& after = values_of(snapshot, checked, decayed);
            for (std::size_t i = 0; i < after.size(); ++i) {
              after[i] =
                  static_cast<double>(static_cast<float>(after[i] + workload.learning_rate(2) * 0.1 * before[i]));
            }
          }
        },
        3);
    CHECK(failed(report, decayed, What::update));
  }
}

TEST_CASE("rounding that makes numbers that are not finite excuses nothing", "[verify]") {
  graph::Graph graph;
  constexpr double value = 1 + 0x1p-21;  // it has more than 20 bits, and its triple no more than 24
  const graph::StateId u = graph.add_state({.name = "u",
                                            .type = {.shape = {64}, .axes = {"x"}},
                                            .kind = graph::StateKind::field,
                                            .initializer = {graph::Initializer::Kind::constant, value}});
  graph::FunctionBuilder builder(graph, "iterate", graph::Role::once, 0);
  const graph::ValueId x = builder.state(u);
  const graph::ValueId zero = builder.call(
      "subtract", {builder.call("add_n", {x, x, x}, {}, "triple"), builder.call("add_n", {x, x, x}, {}, "same")}, {},
      "zero");
  builder.write(u, builder.call("add", {x, builder.call("sqrt", {zero}, {}, "root")}, {}, "sum"),
                graph::StateWrite::Mode::assign);
  builder.finish();
  for (const double factor : {1.0, 1.001}) {
    const verify::Report report = report_of(
        {.graph = graph}, data_parallel(1),
        [&](const At& at, verify::Snapshot& snapshot) {
          if (at.moment == Moment::end) {
            snapshot.parts[u]->values[0] *= factor;
          }
        },
        1);
    INFO(verify::to_text(report));
    CHECK(report.passed() == (factor == 1));
  }
}
