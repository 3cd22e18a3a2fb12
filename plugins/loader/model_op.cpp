#include "plugins/loader/model_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/device/device.h"
#include "core/graph/builder.h"
#include "core/graph/op.h"
#include "core/graph/rule_text.h"
#include "plugins/loader/call.h"
#include "plugins/loader/find.h"
#include "plugins/loader/function_recorder.h"
#include "plugins/loader/graph_recorder.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/raw_attributes.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

using graph::AttributeSpec;
using graph::ShardingRule;
using graph::TensorType;

std::vector<std::uint32_t> numbers_of(const std::vector<graph::ValueId>& values) {
  std::vector<std::uint32_t> numbers;
  for (const graph::ValueId id : values) {
    numbers.push_back(id.exists() ? value_number(id) : 0);
  }
  return numbers;
}

/// Makes the model write the gradient of its op with respect to one operand. Returns no value if that gradient is zero.
/// Throws Error{plugin}, which names the op, if the model fails, breaks a rule, or returns a value whose type is not
/// the operand's.
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

constexpr std::size_t most_tensors = 16;  // limit for operands, and for results, of an op

std::string op_name_from(const char* text) {
  std::string name = name_from(text, "the name");
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto fits = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; };
  if (!is_letter(name.front()) || !std::ranges::all_of(name, fits)) {
    refuse_with(fmt::format("the name is '{}', expected [a-z][a-z0-9_]*", name));
  }
  for (const graph::Op* op : graph::all_ops()) {
    if (op->name == name) {
      refuse_with("shardrun has an op of that name: give it another");
    }
  }
  return name;
}

AttributeSpec attribute_from(const sr_model_op& op, std::uint32_t index) {
  const std::string what = fmt::format("attribute {}", index);
  const auto raw =
      read_element<sr_attribute_spec>(op.attributes, op.attribute_stride, index, SR_ATTRIBUTE_SPEC_SIZE_1_7, what);
  std::string name = name_from(raw.name, what);
  std::string help = name_from(raw.help, fmt::format("the help of the attribute '{}'", name));
  switch (raw.type) {
    case SR_ATTRIBUTE_INTEGER:
      if (raw.min_integer > raw.max_integer) {
        refuse_with(fmt::format("the attribute '{}' is from {} to {}", name, raw.min_integer, raw.max_integer));
      }
      return raw.min_integer == 0 && raw.max_integer == 0
                 ? AttributeSpec::integer(std::move(name), std::move(help))
                 : AttributeSpec::integer(std::move(name), std::move(help), raw.min_integer, raw.max_integer);
    case SR_ATTRIBUTE_NUMBER: return AttributeSpec::real(std::move(name), std::move(help));
    case SR_ATTRIBUTE_NUMBERS: return AttributeSpec::reals(std::move(name), std::move(help));
    case SR_ATTRIBUTE_INTEGERS: return AttributeSpec::integers(std::move(name), std::move(help));
    case SR_ATTRIBUTE_TEXT: {
      std::vector<std::string> choices;
      for (std::uint32_t c = 0; c < raw.choice_count; ++c) {
        choices.push_back(name_from(raw.choices != nullptr ? raw.choices[c] : nullptr,
                                    fmt::format("choice {} of the attribute '{}'", c, name)));
      }
      return AttributeSpec::text(std::move(name), std::move(help), std::move(choices));
    }
    default: refuse_with(fmt::format("the attribute '{}' has the type {}, which there is not", name, raw.type));
  }
}

ModelOp::Operand operand_from(const sr_model_op& op, std::uint32_t index) {
  const std::string what = fmt::format("operand {}", index);
  const auto raw = read_element<sr_operand>(op.operands, op.operand_stride, index, SR_OPERAND_SIZE_1_7, what);
  if (raw.element != SR_ELEMENT_F32 && raw.element != SR_ELEMENT_I32) {
    refuse_with(fmt::format("{} has the element type {}, expected {} (f32) or {} (i32)", what, raw.element,
                            SR_ELEMENT_F32, SR_ELEMENT_I32));
  }
  if (!(raw.low <= raw.high)) {
    refuse_with(fmt::format("{} is drawn from [{}, {})", what, raw.low, raw.high));
  }
  return {raw.element == SR_ELEMENT_I32, raw.low, raw.high};
}

std::optional<graph::DType> result_from(const sr_model_op& op, std::uint32_t index) {
  switch (op.result_elements[index]) {
    case 0: return std::nullopt;
    case SR_ELEMENT_F32: return graph::DType::f32;
    case SR_ELEMENT_I32: return graph::DType::i32;
    default:
      refuse_with(fmt::format("result {} has the element type {}, expected 0 (real), {} (f32) or {} (i32)", index,
                              op.result_elements[index], SR_ELEMENT_F32, SR_ELEMENT_I32));
  }
}

/// Parses sizes of factors: "c=3 k=8".
std::map<std::string, std::int64_t> sizes_from(const char* text) {
  constexpr std::int64_t most = 1 << 12;
  std::map<std::string, std::int64_t> sizes;
  std::istringstream words(text != nullptr ? text : "");
  for (std::string word; words >> word;) {
    const std::size_t equal = std::min(word.find('='), word.size());
    std::int64_t size = 0;
    const char* const end = word.data() + word.size();
    const auto [rest, problem] = std::from_chars(std::min<const char*>(word.data() + equal + 1, end), end, size);
    if (problem != std::errc() || rest != end || size < 1 || size > most) {
      refuse_with(fmt::format("sizes has '{}', expected FACTOR=NUMBER with 1 to {}", printable(excerpt(word)), most));
    }
    sizes[word.substr(0, equal)] = size;
  }
  return sizes;
}

/// Throws Error{shape_mismatch} if a factor that operands read only through windows gets different sizes.
void require_same_indices(const ModelOp& op, const ShardingRule& rule, const std::vector<TensorType>& operands) {
  for (const graph::WindowedDimension& each : rule.windows) {
    const graph::Factor& factor = rule.factors[rule.inputs[each.operand][each.dim]];
    const std::int64_t size = graph::windowed_size(each.window, operands[each.operand].shape[each.dim]);
    if (factor.size != 0 && factor.size != size) {
      throw Error(ErrorCode::shape_mismatch, fmt::format("the windows of the rule '{}' give the factor '{}' {} and {} "
                                                         "indices",
                                                         op.rule, factor.name, factor.size, size));
    }
  }
}

/// The sharding rule of the op for these operands. Throws Error{shape_mismatch} if the op cannot take them.
ShardingRule rule_of(const ModelOp& op, const std::vector<TensorType>& operands) {
  const std::size_t most = op.operands.size();
  if (operands.size() < op.min_operands || operands.size() > most) {
    throw Error(
        ErrorCode::shape_mismatch,
        fmt::format("{} takes {} operands, found {}", op.label,
                    op.min_operands == most ? fmt::format("{}", most) : fmt::format("{} to {}", op.min_operands, most),
                    operands.size()));
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (graph::is_real(operands[i].dtype) == op.operands[i].is_integer) {
      throw Error(ErrorCode::shape_mismatch,
                  fmt::format("{}: operand {} is {}, expected {}", op.label, i, to_string(operands[i]),
                              op.operands[i].is_integer ? "i32" : "real numbers"));
    }
  }
  try {
    ShardingRule rule = graph::rule_from_text(op.rule, operands);
    rule.dtypes = op.results;
    require_same_indices(op, rule, operands);
    return rule;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", op.label, error.message()));
  }
}

/// Estimates the op's FLOPs: 2 for each index of the loops if the op sums, otherwise 1. Elements that a window reads
/// count as summed.
std::int64_t flops_of(const ModelOp& op, const graph::OpShape& shape) {
  const ShardingRule rule = graph::rule_from_text(op.rule, shape.inputs);
  std::vector<std::int64_t> sizes(rule.factors.size(), 1);
  const auto take_sizes = [&](const std::vector<graph::FactorId>& dims, const TensorType& type) {
    for (std::size_t d = 0; d < dims.size(); ++d) {
      sizes[dims[d].index()] = type.shape[d];
    }
  };
  for (std::size_t i = 0; i < shape.inputs.size(); ++i) {
    take_sizes(rule.inputs[i], shape.inputs[i]);
  }
  for (std::size_t o = 0; o < shape.outputs.size(); ++o) {
    // Last, because a shard's operand is larger than its factor if it is read through a window.
    take_sizes(rule.outputs[o], shape.outputs[o]);
  }
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    count *= size;
  }
  for (const graph::WindowedDimension& each : rule.windows) {
    count *= (each.window.last - each.window.first) / each.window.divisor + 1;
  }
  const bool sums = !rule.windows.empty() || std::ranges::any_of(rule.factors, [](const graph::Factor& each) {
    return each.kind == graph::FactorClass::reduced;
  });
  return sums ? 2 * count : count;
}

void read_tensors(ModelOp& op) {
  op.rule = op.raw.rule != nullptr ? printable(op.raw.rule) : "";
  const std::vector<TensorType> typical = graph::typical_operands(op.rule, [](const std::string&) { return 2; });
  if (op.raw.operand_count != typical.size() || typical.size() > most_tensors) {
    refuse_with(fmt::format("it declares {} operands, and its rule '{}' has {}; expected as many, and at most {}",
                            op.raw.operand_count, op.rule, typical.size(), most_tensors));
  }
  op.min_operands = op.raw.min_operands != 0 ? op.raw.min_operands : typical.size();
  if (op.min_operands > typical.size()) {
    refuse_with(fmt::format("min_operands is {}, and its rule has {}", op.min_operands, typical.size()));
  }
  std::size_t results = 0;
  for (std::size_t count = op.min_operands; count <= typical.size(); ++count) {
    const std::vector<TensorType> given(typical.begin(), typical.begin() + static_cast<std::ptrdiff_t>(count));
    results = graph::rule_from_text(op.rule, given).outputs.size();
  }
  for (std::uint32_t i = 0; i < op.raw.operand_count; ++i) {
    op.operands.push_back(operand_from(op.raw, i));
  }
  if (results > most_tensors || (op.raw.result_elements != nullptr && op.raw.result_count != results)) {
    refuse_with(fmt::format("it declares {} results, and its rule '{}' has {}; expected as many, and at most {}",
                            op.raw.result_count, op.rule, results, most_tensors));
  }
  for (std::uint32_t r = 0; r < results && op.raw.result_elements != nullptr; ++r) {
    op.results.push_back(result_from(op.raw, r));
  }
}

void read_attributes(ModelOp& op) {
  for (std::uint32_t a = 0; a < op.raw.attribute_count; ++a) {
    AttributeSpec spec = attribute_from(op.raw, a);
    if (std::ranges::find(op.attributes, spec.name, &AttributeSpec::name) != op.attributes.end()) {
      refuse_with(fmt::format("two attributes are called '{}'", spec.name));
    }
    op.attributes.push_back(std::move(spec));
  }
  op.example = attributes_from(op.raw.example, op.raw.example_count, op.raw.example_stride);
  try {
    graph::check_attributes(op.attributes, op.example);
  } catch (const Error& error) {
    refuse_with(fmt::format("its example: {}", error.message()));
  }
}

void read_op(ModelOp& op) {
  op.help = name_from(op.raw.help, "the help");
  read_tensors(op);
  read_attributes(op);
  op.sizes = sizes_from(op.raw.sizes);
  if (op.raw.kernel == nullptr || op.raw.kernel_f64 == nullptr) {
    refuse_with(fmt::format("it lacks {}", op.raw.kernel == nullptr ? "kernel" : "kernel_f64"));
  }
}

/// An example call, whose operands have small sizes.
graph::OpExample example_of(const ModelOp& op) {
  std::map<std::string, std::int64_t> sizes = op.sizes;
  std::int64_t next = 2;
  graph::OpExample example{.attributes = op.example,
                           .operands = graph::typical_operands(op.rule, [&](const std::string& factor) {
                             const auto [known, is_new] = sizes.try_emplace(factor, next);
                             next += is_new ? 1 : 0;
                             return known->second;
                           })};
  for (std::size_t i = 0; i < example.operands.size(); ++i) {
    example.operands[i].dtype = op.operands[i].is_integer ? graph::DType::i32 : graph::DType::f32;
  }
  return example;
}

void register_op(const std::shared_ptr<const ModelOp>& op) {
  graph::Op made{.name = op->in_graph,
                 .help = op->help,
                 .attributes = op->attributes,
                 .rule = [op](const graph::Attributes&,
                              const std::vector<TensorType>& operands) { return rule_of(*op, operands); },
                 .flops = [op](const graph::OpShape& shape) { return flops_of(*op, shape); },
                 .only_float32 = true,
                 .of_model = op->plugin.manifest().name,
                 .example = example_of(*op)};
  if (op->raw.gradient != nullptr) {
    made.differentiated = std::numeric_limits<std::size_t>::max();
    made.gradient = [op](graph::FunctionBuilder& builder, const graph::GradientRequest& request) {
      return write_gradient(*op, builder, request);
    };
  }
  graph::add_op(std::move(made));
  device::add_kernel("cpu", op->in_graph, std::make_unique<const OpKernel>(op, OpKernel::Reals::f32));
  device::add_kernel("reference", op->in_graph, std::make_unique<const OpKernel>(op, OpKernel::Reals::f64));
}

}  // namespace

std::vector<std::shared_ptr<const ModelOp>> read_ops(const Plugin& plugin, const sr_model& table) {
  std::vector<std::shared_ptr<const ModelOp>> ops;
  const std::string& model = plugin.manifest().name;
  for (std::uint32_t o = 0; o < table.op_count; ++o) {
    std::string label = fmt::format("op {} of model '{}' ({})", o, model, plugin.path().string());
    try {
      const auto op = std::make_shared<ModelOp>(
          ModelOp{.raw = read_element<sr_model_op>(table.ops, table.op_stride, o, SR_MODEL_OP_SIZE_1_7, "sr_model_op"),
                  .plugin = plugin});
      label = fmt::format("op '{}' of model '{}' ({})", op->raw.name != nullptr ? printable(excerpt(op->raw.name)) : "",
                          model, plugin.path().string());
      op->name = op_name_from(op->raw.name);
      op->in_graph = fmt::format("{}.{}", model, op->name);
      op->label = label;
      read_op(*op);
      if (std::ranges::any_of(ops, [&](const auto& earlier) { return earlier->name == op->name; })) {
        refuse_with("an earlier one has that name");
      }
      ops.push_back(op);
    } catch (const Error& error) {
      refuse_with(fmt::format("{}: {}", label, error.message()));
    }
  }
  return ops;
}

std::vector<std::shared_ptr<const ModelOp>> register_ops(const Plugin& plugin, const sr_model& table) {
  // The models whose ops are registered, and their files.
  static auto& files = *new std::map<std::string, std::filesystem::path>;
  std::vector<std::shared_ptr<const ModelOp>> ops = read_ops(plugin, table);
  if (ops.empty()) {
    return ops;
  }
  const auto [known, is_new] = files.try_emplace(plugin.manifest().name, plugin.path());
  if (!is_new && known->second != plugin.path()) {
    refuse_with(fmt::format("model '{}' ({}): this process has the ops of another model of that name ({})",
                            plugin.manifest().name, plugin.path().string(), known->second.string()));
  }
  if (is_new) {
    for (const std::shared_ptr<const ModelOp>& op : ops) {
      register_op(op);
    }
  }
  return ops;
}

}  // namespace shardrun::plugins
