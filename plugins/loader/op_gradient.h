#pragma once

#include "core/graph/builder.h"
#include "core/graph/op.h"
#include "plugins/loader/model_op.h"

namespace shardrun::plugins {

/// Lets a model write the gradient of its op. No value where it is zero. Throws Error{plugin} naming the op if the
/// model fails, breaks a rule, or returns a value of another type than the operand's.
[[nodiscard]] graph::ValueId write_gradient(const ModelOp& op, graph::FunctionBuilder& builder,
                                            const graph::GradientRequest& request);

}  // namespace shardrun::plugins
