#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/graph/attributes.h"
#include "core/graph/sharding_rule.h"
#include "core/graph/tensor_type.h"

namespace shardrun {

/// An id as a place in a vector.
[[nodiscard]] constexpr std::size_t index(std::int32_t id) noexcept { return static_cast<std::size_t>(id); }

}  // namespace shardrun

namespace shardrun::graph {

class FunctionBuilder;
using ValueId = std::int32_t;
inline constexpr ValueId no_value = -1;

/// The static facts of one use of an op: what its rules and a kernel's scratch query may look at.
struct OpShape {
  const Attributes& attributes;
  const std::vector<TensorType>& inputs;
  const std::vector<TensorType>& outputs;
};

/// What the gradient of an op is built from.
struct GradientRequest {
  const Attributes& attributes;
  const std::vector<ValueId>& inputs;
  const std::vector<ValueId>& outputs;
  const std::vector<ValueId>& output_gradients;  ///< no_value where nothing flows back into an output
  std::size_t input;                             ///< the operand whose gradient is wanted
};

/// An operation, declared in one place: how it is sharded (and with that its shapes), what may be computed in place,
/// what it costs and how it is differentiated. Its kernels are registered by the devices under the same name.
struct Op {
  std::string name;

  /// The factors for these attributes and operands (sizes are filled in by infer_types). Throws Error{shape_mismatch}
  /// when the operands cannot be meant.
  ShardingRule (*rule)(const Attributes& attributes, const std::vector<TensorType>& inputs) = nullptr;

  /// Adds nodes that compute the gradient of one operand, and returns it; no_value when it is zero or undefined.
  /// Null for an op that is never differentiated.
  ValueId (*gradient)(FunctionBuilder& builder, const GradientRequest& request) = nullptr;

  /// Floating-point operations of one execution, a multiply-add counted as two. Null: one per result element.
  std::int64_t (*flops)(const OpShape& shape) = nullptr;

  /// (output, input) pairs that may share one buffer: the kernel reads each element before it writes it.
  std::vector<std::pair<int, int>> in_place = {};

  /// Its kernels can add to output 0 instead of overwriting it.
  bool accumulates = false;

  /// Its results cost less to compute again than to keep: arithmetic of each element, or of each row.
  bool cheap = false;

  /// No element of its result is below zero, whatever its operands are.
  bool never_negative = false;

  /// It sums any number of operands of one shape: the partitioner may sum some of them first.
  bool variadic_sum = false;
};

/// Makes an op known under its name: `const RegisterOp matmul({.name = "matmul", …});` at namespace scope.
class RegisterOp {
 public:
  explicit RegisterOp(Op op);
};

/// Throws Error{internal} for an unknown name.
[[nodiscard]] const Op& find_op(std::string_view name);
[[nodiscard]] std::vector<const Op*> all_ops();

[[nodiscard]] std::int64_t flops(const Op& op, const OpShape& shape);

}  // namespace shardrun::graph
