// Kernels of the cpu that are slightly wrong fail the verification.

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <string>

#include "core/verify/verify.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/unit/verify/support.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

constexpr int plain_layers = 50;
constexpr std::int64_t plain_width = 16;

std::string plain_layer(int layer) { return fmt::format("layer.{}/weights", layer); }

void declare_plain(graph::Graph& graph, const workload::ModelSettings& settings) {
  const auto add = [&](const std::string& name, std::int64_t in, std::int64_t out, const char* from, const char* to) {
    graph.states.push_back(
        {.name = name,
         .type = {.shape = {in, out}, .axes = {from, to}},
         .initializer = {graph::Initializer::Kind::normal, std::sqrt(2.0 / static_cast<double>(in))}});
  };
  add(plain_layer(0), settings.data.features, plain_width, "features", "hidden");
  for (int layer = 1; layer < plain_layers; ++layer) {
    // Every other layer's columns may be split.
    const bool is_split = layer % 2 == 1;
    add(plain_layer(layer), plain_width, plain_width, is_split ? "hidden" : "mlp", is_split ? "mlp" : "hidden");
  }
  add("head", plain_width, settings.data.vocab, "mlp", "vocab");
}

graph::Losses plain_losses(graph::FunctionBuilder& builder, const workload::ModelSettings& settings, std::int64_t rows,
                           bool) {
  const graph::Attributes product{{"contract", std::int64_t{1}}, {"transpose", std::int64_t{0}}};
  graph::ValueId x =
      builder.input("inputs", {graph::DType::f32, {rows, settings.data.features}, {"batch", "features"}});
  for (int layer = 0; layer < plain_layers; ++layer) {
    x = builder.call("matmul", {x, builder.state(plain_layer(layer))}, product, fmt::format("layer.{}", layer));
    x = builder.call("relu", {x}, {}, fmt::format("relu.{}", layer));
  }
  const graph::ValueId logits = builder.call("matmul", {x, builder.state("head")}, product, "logits");
  const graph::ValueId targets = builder.input("targets", {graph::DType::i32, {rows}, {"batch"}});
  const graph::ValueId highest = builder.call("row_max", {logits}, {}, "highest_logit");
  const std::vector<graph::ValueId> terms =
      builder.call_all("softmax_terms", {logits, highest, targets}, {}, "softmax_terms");
  return {.values = builder.call("token_loss", {highest, terms[0], terms[1]}, {}, "losses")};
}

/// A network of 50 layers without norms or residuals.
VerifyCase plain_network() {
  const workload::Model model{.name = "plain", .declare = declare_plain, .losses = plain_losses};
  const workload::ModelSettings settings{.options = {}, .data = {.vocab = 5, .features = 6}};
  return VerifyCase(
      {.name = "plain",
       .graph = workload::build_training(model, settings, {.batch = 16, .microbatches = 2, .optimizer = {.clip = 0.5}}),
       .microbatch_rows = workload::microbatch_rows(16, 2),
       .vocabulary = 5});
}

verify::Report report_of(const VerifyCase& checked, const plan::Plan& plan) {
  return verify::verify_interpreted(checked.workload(), partition::split(checked.model.graph, plan), {.steps = 3});
}

/// The ops of a step whose results matter. The highest logit only shifts exponents, so its op is left out.
std::set<std::string> ops_of(const graph::Graph& graph) {
  std::set<std::string> ops;
  for (const graph::Function& function : graph.functions) {
    for (const graph::Node& node : function.nodes) {
      if (function.role != graph::Role::on_demand && node.op->name != "row_max") {
        ops.insert(node.op->name);
      }
    }
  }
  return ops;
}

}  // namespace

TEST_CASE("a network of 50 layers agrees with the reference", "[verify]") {
  const VerifyCase checked = plain_network();
  for (const NamedPlan& plan : verify_plans()) {
    const verify::Report report = report_of(checked, plan.plan);
    INFO(plan.name << "\n" << verify::to_text(report));
    CHECK(report.passed());
  }
}

TEST_CASE("a kernel that is off by a ten-thousandth in one of a thousand elements fails the verification", "[verify]") {
  std::vector<VerifyCase> cases = verify_cases();
  cases.insert(cases.begin(), plain_network());
  const plan::Plan alone = data_parallel(1);
  for (std::size_t c = 0; c < cases.size(); c += depth<std::size_t>(1, 3, 8)) {
    for (const std::string& op : ops_of(cases[c].model.graph)) {
      const WrongOp wrong(op);
      INFO(cases[c].model.name << ", " << op);
      CHECK_FALSE(report_of(cases[c], alone).passed());
    }
    CHECK(report_of(cases[c], alone).passed());
  }
}
