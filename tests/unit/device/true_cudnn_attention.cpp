// Attention by the installed cuDNN, if there is one: it finds an engine that fits into the planned scratch. It computes
// nothing, because that needs a GPU. It compiles with a fake of the driver.

#include <string>
#include <vector>

#include "core/device/cuda/runtime/cudnn_plans.h"
#include "tests/unit/device/true_cudnn.h"
#include "tests/unit/device/types.h"

using namespace shardrun;
using namespace shardrun::device;
using namespace shardrun::device::cuda;
using graph::DType;
using test::Shape;
using test::type_of;

namespace {

/// q: [batch, queries, key_heads, group, width]
struct Attended {
  Shape q;
  std::int64_t keys;
  std::int64_t causal = 1;
  std::int64_t most_bytes = most_attention_bytes;
};

AttentionSteps steps_of(const Attended& of, bool is_gradient) {
  const graph::TensorType q = type_of(of.q);
  const graph::TensorType k = type_of({of.q[0], of.keys, of.q[2], of.q[4]});
  const graph::TensorType log_sum_exp = type_of({of.q[0], of.q[2], of.q[3], of.q[1]}, DType::f32);
  const graph::Attributes attributes = {
      {"causal", of.causal}, {"window", std::int64_t{0}}, {"scale", 0.0}, {"dropout", 0.0}};
  const std::vector<graph::TensorType> inputs = {q, k, k};
  const std::vector<graph::TensorType> outputs = {q, log_sum_exp};
  const std::vector<graph::TensorType> all = {q, k, k, q, log_sum_exp, q};
  return is_gradient
             ? attention_steps("scaled_dot_product_attention_gradient", {attributes, all, inputs}, of.most_bytes)
                   .value()
             : attention_steps("scaled_dot_product_attention", {attributes, inputs, outputs}, of.most_bytes).value();
}

/// The steps of the op `attention` for sequences of this length.
AttentionSteps packed_steps(std::int64_t length, bool is_gradient) {
  const graph::TensorType qkv = type_of({3, length, 3, 12, 64});
  const graph::TensorType out = type_of({3, length, 12, 64});
  const graph::TensorType log_sum_exp = type_of({3, 12, length}, DType::f32);
  const graph::Attributes attributes = {{"dropout", 0.0}};
  const std::vector<graph::TensorType> inputs = {qkv};
  const std::vector<graph::TensorType> outputs = {out, log_sum_exp};
  const std::vector<graph::TensorType> all = {qkv, out, log_sum_exp, out};
  return is_gradient ? attention_steps("attention_gradient", {attributes, all, inputs}).value()
                     : attention_steps("attention", {attributes, inputs, outputs}).value();
}

std::shared_ptr<const CudnnPlan> plan_of(const CudnnTarget& target, const AttentionSteps& steps) {
  return find_attention_plan(target, steps.part, steps.workspace_bytes);
}

}  // namespace

TEST_CASE("the installed cuDNN computes attention in the planned scratch", "[unit]") {
  const auto target = test::true_cudnn();
  if (target == nullptr) {
    return;
  }
  const std::int64_t part = 24 << 20;  // one head's probabilities, dk and dv of 2048 queries and keys
  for (const bool is_gradient : {false, true}) {
    for (const std::int64_t length : {1024, 5}) {
      const AttentionSteps steps = packed_steps(length, is_gradient);
      INFO(text_of(steps.part));
      CHECK(plan_of(*target, steps) != nullptr);
    }
    for (const Attended& of : {Attended{{2, 100, 2, 4, 64}, 61}, Attended{{2, 61, 2, 4, 96}, 100, 0},
                               Attended{{2, 2048, 4, 2, 128}, 2048, 1, part}, Attended{{1, 64, 2, 1, 256}, 64}}) {
      const AttentionSteps steps = steps_of(of, is_gradient);
      INFO(text_of(steps.part));
      CHECK(steps.part.parts_of_heads == (is_gradient && of.most_bytes == part ? 4 : 1));
      CHECK(plan_of(*target, steps) != nullptr);
    }
  }
}

TEST_CASE("the installed cuDNN makes the gradient with unordered sums where probabilities have no room", "[unit]") {
  const auto target = test::true_cudnn();
  if (target == nullptr) {
    return;
  }
  for (const AttentionSteps& steps : {packed_steps(1024, true), steps_of({{2, 1024, 2, 1, 128}, 1024, 0}, true)}) {
    INFO(text_of(steps.part));
    constexpr std::size_t bytes = 4096;
    CHECK(find_attention_plan(*target, steps.part, bytes, AttentionOrder::any) != nullptr);
    CHECK(find_attention_plan(*target, steps.part, bytes) == nullptr);
  }
}

TEST_CASE("the installed cuDNN computes attention on an A100 too", "[unit]") {
  std::string a100 = test::h100;
  for (const auto& [of_h100, own] : {std::pair("\"deviceVer\":900", "\"deviceVer\":800"),
                                     std::pair("\"multiProcessorCount\":132", "\"multiProcessorCount\":108"),
                                     std::pair("Optin\":232448", "Optin\":166912")}) {
    a100.replace(a100.find(of_h100), std::string(of_h100).size(), own);
  }
  const auto target = test::true_cudnn(a100);
  if (target == nullptr) {
    return;
  }
  for (const bool is_gradient : {false, true}) {
    CHECK(plan_of(*target, packed_steps(100, is_gradient)) != nullptr);
    CHECK(plan_of(*target, steps_of({{2, 100, 2, 4, 64}, 61}, is_gradient)) != nullptr);
  }
}

TEST_CASE("the installed cuDNN needs the workspace of the gradient, and has no engine for narrow heads", "[unit]") {
  const auto target = test::true_cudnn();
  if (target == nullptr) {
    return;
  }
  AttentionSteps steps = packed_steps(1024, true);
  CHECK(find_attention_plan(*target, steps.part, steps.workspace_bytes / 2) == nullptr);
  steps.part.width = 20;
  CHECK(plan_of(*target, steps) == nullptr);
}
