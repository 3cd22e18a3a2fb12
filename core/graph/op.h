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

/// Attributes, operand types and result types of one use of an op, for its FLOPs and a kernel's scratch bytes.
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
  const std::vector<ValueId>& output_gradients;  ///< one per output; no id: the scalar does not depend on that output
  std::size_t input;                             ///< the operand whose gradient is requested
};

/// An example of an op's use, from which `shardrun help ops` shows its operands, factors and results.
struct OpExample {
  Attributes attributes = {};
  std::vector<TensorType> operands = {};
};

/// The declaration of an operation: its sharding rule, from which its result shapes follow, its in-place pairs, cost
/// and gradient. Devices register its kernels under the same name.
struct Op {
  std::string name;

  /// The result in terms of the operands, in one line. It is empty for ops that models cannot call: those of gradients,
  /// updates, state writes and int8 weights.
  std::string help = {};

  /// The attributes that the op takes. REQUIRES: an op with `help` lists all of them.
  std::vector<AttributeSpec> attributes = {};

  /// Returns the factors for these attributes and operands; infer_types() fills in their sizes. Throws
  /// Error{shape_mismatch} if the attributes or operands do not fit the op.
  std::function<ShardingRule(const Attributes& attributes, const std::vector<TensorType>& inputs)> rule = nullptr;

  /// Adds nodes that compute the gradient of operand `request.input`, and returns that gradient. Returns no id if the
  /// gradient is zero or undefined. Null: the op has no gradient.
  std::function<ValueId(FunctionBuilder& builder, const GradientRequest& request)> gradient = nullptr;

  /// Whether gradients treat the results as constants: their derivative is zero almost everywhere, or it cancels in the
  /// ops that use the results.
  bool stops_gradient = false;
  /// The number of results, counted from the first, that have derivatives. The others, such as a row's mean, have none.
  /// `gradient` is called if at least one result has a gradient.
  std::size_t differentiated = 1;

  /// Floating-point operations of one execution, a multiply-add counted as two. Null: one per result element.
  std::function<std::int64_t(const OpShape& shape)> flops = nullptr;

  /// (output, input) pairs that can share a buffer, because the kernel reads each element before it writes it. They
  /// share one only if both have the same shape and element type.
  std::vector<std::pair<std::size_t, std::size_t>> in_place = {};

  /// Whether its kernels can add to output 0 instead of overwriting it.
  bool accumulates = false;

  /// Whether computing its results again costs less than keeping them in memory: arithmetic per element or per row.
  bool cheap = false;

  /// Whether no element of its result is negative, whatever its operands are.
  bool never_negative = false;

  /// Whether the result is the operand, shifted along the dimension that the rule reads through a window. The kernel
  /// can leave out elements that the rank lacks (attribute `missing`); a halo exchange then brings them.
  bool shifts = false;

  /// Whether it sums any number of operands of equal shape. The partitioner can then sum some of them first.
  bool variadic_sum = false;

  /// Whether all real numbers that its kernels read and write are float32. Mixed precision adds casts around it.
  bool only_float32 = false;

  /// The model that defines it, for an op called "MODEL.NAME"; empty: every model may call it.
  std::string of_model = {};

  OpExample example = {};  ///< of an op with `help`: an example of its use
};

/// Registers an op under its name: `const RegisterOp matmul({.name = "matmul", …});` at namespace scope.
class RegisterOp {
 public:
  explicit RegisterOp(Op op);
};

/// Adds an op while the program runs. It is never removed. REQUIRES: its name is new, and no other thread uses ops.
void add_op(Op op);

/// The op of this name. Throws Error{internal} if there is none.
[[nodiscard]] const Op& find_op(std::string_view name);
/// The op that this model defines; null if it defines none of that name.
[[nodiscard]] const Op* find_op_of(std::string_view model, std::string_view name);
/// The ops that this model defines; for "", those that no model defines.
[[nodiscard]] std::vector<const Op*> all_ops(std::string_view model = {});

[[nodiscard]] std::int64_t flops(const Op& op, const OpShape& shape);

}  // namespace shardrun::graph
