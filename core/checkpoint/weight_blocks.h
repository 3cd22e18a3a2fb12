#pragma once

#include "core/checkpoint/tensor_source.h"
#include "core/graph/graph.h"

namespace shardrun::checkpoint {

/// The parameters of a graph that keeps weights as int8 (graph::store_weights), read from tensors of real numbers.
/// Weights are converted in blocks of 32 elements of a row while they are read, as ggml makes Q8_0: the scale is
/// max|w|/127, each integer is w / scale rounded to nearest, and the scale is rounded to float16 when it is stored. So
/// the blocks of a Q8_0 file stay as they are. Integers and scales are presented as tensors of float32. A tensor whose
/// rows are columns of the file is converted as a whole, 32 of the file's rows at a time, and kept as integers until
/// the next such tensor is read. `source` must outlive the result. REQUIRES: require_parameters() accepts the source.
[[nodiscard]] TensorSource in_blocks(const TensorSource& source, const graph::Graph& graph);

/// The shape that a parameter has in files of weights. If `is_turned`, its contracted dimensions come first.
[[nodiscard]] std::vector<std::int64_t> shape_in_files(const graph::State& parameter);

}  // namespace shardrun::checkpoint
