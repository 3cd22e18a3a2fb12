#include "plugins/loader/op_gradient.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/base/error.h"
#include "plugins/loader/call.h"
#include "plugins/loader/find.h"
#include "plugins/loader/function_recorder.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/raw_attributes.h"

namespace shardrun::plugins {
namespace {

std::vector<std::uint32_t> numbers_of(const std::vector<graph::ValueId>& values) {
  std::vector<std::uint32_t> numbers;
  for (const graph::ValueId id : values) {
    numbers.push_back(id.exists() ? value_number(id) : 0);
  }
  return numbers;
}

}  // namespace

graph::ValueId write_gradient(const ModelOp& op, graph::FunctionBuilder& builder,
                              const graph::GradientRequest& request) {
  const std::string what = fmt::format("the gradient of {} with respect to operand {}", op.label, request.input);
  const std::vector<std::uint32_t> operands = numbers_of(request.inputs);
  const std::vector<std::uint32_t> results = numbers_of(request.outputs);
  const std::vector<std::uint32_t> result_gradients = numbers_of(request.output_gradients);
  const std::vector<sr_attribute> attributes = raw_attributes(op.attributes, request.attributes);
  const sr_gradient_request raw = {.struct_size = sizeof(sr_gradient_request),
                                   .operand = static_cast<std::uint32_t>(request.input),
                                   .operands = operands.data(),
                                   .results = results.data(),
                                   .result_gradients = result_gradients.data(),
                                   .attributes = attributes.data(),
                                   .operand_count = static_cast<std::uint32_t>(operands.size()),
                                   .result_count = static_cast<std::uint32_t>(results.size()),
                                   .attribute_count = static_cast<std::uint32_t>(attributes.size()),
                                   .attribute_stride = sizeof(sr_attribute)};
  FunctionRecorder recorder(builder, 0, op.plugin.manifest().name);
  recorder.take_calls_only();
  std::uint32_t gradient = 0;
  try {
    const CallGuard guard(label_of(op.plugin), fmt::format("gradient of {}", op.name), call_limit());
    call_plugin(what, ErrorCode::plugin, [&](sr_error* error) {
      return op.raw.gradient(op.plugin.table().self, &raw, &recorder.writer(), &gradient, error);
    });
  } catch (const Error&) {
    if (!recorder.refusal()) {
      throw;
    }
  }
  if (recorder.refusal()) {
    refuse_with(fmt::format("{}: {}", what, recorder.refusal()->message()));
  }
  if (gradient == 0) {
    return {};
  }
  if (gradient > builder.function().values.size()) {
    refuse_with(fmt::format("{} is the value {}, which there is not", what, gradient));
  }
  const graph::ValueId made(gradient - 1);
  const graph::TensorType& expected = builder.type(request.inputs[request.input]);
  const graph::TensorType& found = builder.type(made);
  if (found.dtype != expected.dtype || found.shape != expected.shape) {
    refuse_with(fmt::format("{} is {}, expected the operand's type, {}", what, to_string(found), to_string(expected)));
  }
  return made;
}

}  // namespace shardrun::plugins
