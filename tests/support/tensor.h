#pragma once

#include "core/conformance/tensor.h"

namespace shardrun::test {

using conformance::concatenate;
using conformance::Random;
using conformance::slice;
using conformance::Tensor;
using conformance::type_of;
using conformance::zeros;

/// Rounds every element to float32.
inline void round_to_float(Tensor& tensor) {
  for (double& value : tensor.values) {
    value = static_cast<float>(value);
  }
}

}  // namespace shardrun::test
