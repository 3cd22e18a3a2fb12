#pragma once

#include "core/models/loss.h"
#include "tests/unit/verify/support.h"

namespace shardrun::test {

/// Classes from logits = x·W + (x·v)·w. Where all of w is one, v adds the same number to each of a sample's logits,
/// which softmax does not see: its true gradient is zero. Where w is small, v's gradient is as small, but not zero.
enum class Gradient { zero, small };

template <Gradient of_v>
void declare_blind(graph::Graph& graph, const models::ModelSettings& settings) {
  using graph::Initializer;
  const models::DataShape& data = settings.data;
  const Initializer normal{Initializer::Kind::normal, 0.3};
  const Initializer ones{Initializer::Kind::constant, 1};
  const Initializer small{Initializer::Kind::normal, 1e-5};
  models::parameter(graph, "W", {data.features, data.vocab}, {"features", "vocab"}, normal, false);
  models::parameter(graph, "v", {data.features, 1}, {"features", "one"}, normal, false);
  models::parameter(graph, "w", {1, data.vocab}, {"one", "vocab"}, of_v == Gradient::zero ? ones : small, false);
}

[[nodiscard]] inline graph::ValueId blind_losses(graph::FunctionBuilder& builder, const models::ModelSettings& settings,
                                                 std::int64_t rows, bool) {
  const graph::Attributes product{{"contract", std::int64_t{1}}, {"transpose", std::int64_t{0}}};
  const graph::ValueId x =
      builder.input("inputs", {graph::DType::f32, {rows, settings.data.features}, {"batch", "features"}});
  const graph::ValueId seen = builder.call("matmul", {x, builder.state("W")}, product, "seen");
  const graph::ValueId shift = builder.call("matmul", {x, builder.state("v")}, product, "shift");
  const graph::ValueId shifts = builder.call("matmul", {shift, builder.state("w")}, product, "shifts");
  return models::cross_entropy(builder, builder.call("add", {seen, shifts}, {}, "logits"),
                               builder.input("targets", {graph::DType::i32, {rows}, {"batch"}}));
}

template <Gradient of_v>
[[nodiscard]] VerifyCase blind_case(std::int64_t batch, std::int64_t classes) {
  const models::Model model{.name = "blind",
                            .declare = declare_blind<of_v>,
                            .losses = blind_losses,
                            .losses_per_sample = [](const models::ModelSettings&) -> std::int64_t { return 1; }};
  const models::ModelSettings settings{.options = {}, .data = {.vocab = classes, .features = 6}};
  return VerifyCase({.name = "blind",
                     .graph = models::build_training(model, settings, {.batch = batch, .microbatches = 2}),
                     .microbatch_rows = models::microbatch_rows(batch, 2),
                     .vocabulary = static_cast<std::int32_t>(classes)});
}

}  // namespace shardrun::test
