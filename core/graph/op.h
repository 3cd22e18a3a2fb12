#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/id.h"
#include "core/graph/attributes.h"
#include "core/graph/sharding_rule.h"
#include "core/graph/tensor_type.h"

namespace shardrun::graph {

class FunctionBuilder;
using ValueId = Id<struct ValueTag>;

/// The static facts of one use of an op, for its rules and a kernel's scratch query.
struct OpShape {
  const Attributes& attributes;
  const std::vector<TensorType>& inputs;
  const std::vector<TensorType>& outputs;
};

/// The inputs of an op's gradient function.
struct GradientRequest {
  const Attributes& attributes;
  const std::vector<ValueId>& inputs;
  const std::vector<ValueId>& outputs;
  const std::vector<ValueId>& output_gradients;  ///< none if nothing flows back into an output
  std::size_t input;                             ///< the operand whose gradient is requested
};

/// One use of an op. `shardrun help ops` shows its operands, factors and results.
struct OpExample {
  Attributes attributes = {};
  std::vector<TensorType> operands = {};
};

/// An operation, declared in one place: its sharding rule (which gives its shapes too), its in-place pairs, cost and
/// gradient. Devices register its kernels under the same name.
struct Op {
  std::string name;

  /// The result in terms of the operands, in one line. Empty for an op of gradients and updates, which models may not
  /// call.
  std::string help = {};

  /// Its attributes. REQUIRES, for an op with `help`: all are declared.
  std::vector<AttributeSpec> attributes = {};

  /// The factors for these attributes and operands; infer_types fills in their sizes. Throws Error{shape_mismatch} if
  /// the operands do not fit the op.
  std::function<ShardingRule(const Attributes& attributes, const std::vector<TensorType>& inputs)> rule = nullptr;

  /// Adds nodes for the gradient of one operand and returns it; none if it is zero or undefined. Null for an op
  /// that is never differentiated.
  std::function<ValueId(FunctionBuilder& builder, const GradientRequest& request)> gradient = nullptr;

  /// Whether its results count as constants for gradients: their derivative is zero almost everywhere, or it cancels in
  /// the ops that use them.
  bool stops_gradient = false;
  /// How many results, from the first, may be differentiated. `gradient` is called if one of them has a gradient; the
  /// others are statistics.
  std::size_t differentiated = 1;

  /// Floating-point operations of one execution, a multiply-add counted as two. Null: one per result element.
  std::function<std::int64_t(const OpShape& shape)> flops = nullptr;

  /// (output, input) pairs that may share a buffer: the kernel reads each element before it writes it. Both have one
  /// shape, which is the buffer's.
  std::vector<std::pair<std::size_t, std::size_t>> in_place = {};

  /// Whether its kernels can add to output 0 instead of overwriting it.
  bool accumulates = false;

  /// Whether computing its results again costs less than keeping them: arithmetic per element or per row.
  bool cheap = false;

  /// Whether no element of its result is negative, whatever its operands are.
  bool never_negative = false;

  /// Whether its result is its operand, moved along the dimension that its rule reads through a window. Its kernel can
  /// leave out the elements that it lacks (attribute `missing`), and a halo exchange brings them.
  bool shifts = false;

  /// Whether it sums any number of operands of one shape. The partitioner may then sum some of them first.
  bool variadic_sum = false;

  /// Whether its kernels take and make no other real numbers than float32: mixed precision casts before and after it.
  bool only_float32 = false;

  /// The model that brings it, for an op called "MODEL.NAME"; empty: every model may call it.
  std::string of_model = {};

  OpExample example = {};  ///< of an op with `help`
};

/// Registers an op under its name: `const RegisterOp matmul({.name = "matmul", …});` at namespace scope.
class RegisterOp {
 public:
  explicit RegisterOp(Op op);
};

/// Adds an op while the program runs. It is never removed. REQUIRES: no op has its name, and no other thread uses ops.
void add_op(Op op);

/// Throws Error{internal} for an unknown name.
[[nodiscard]] const Op& find_op(std::string_view name);
/// The op that a model brings; null if it brings none of that name.
[[nodiscard]] const Op* find_op_of(std::string_view model, std::string_view name);
/// The ops that this model brings; without a model, those that no model brings.
[[nodiscard]] std::vector<const Op*> all_ops(std::string_view model = {});

[[nodiscard]] std::int64_t flops(const Op& op, const OpShape& shape);

}  // namespace shardrun::graph
