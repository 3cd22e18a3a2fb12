#pragma once

#include "core/data/npy.h"

namespace shardrun::data {

/// Throws Error{data} that names, by row and column, the first value that is NaN, infinite or too large for float32, in
/// which runs compute. Reads an array of reals once, divided among `threads`. Integers are not read.
void require_finite(const NpyArray& array, int threads);

}  // namespace shardrun::data
