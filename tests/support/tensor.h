#pragma once

#include "core/conformance/tensor.h"

namespace shardrun::test {

using conformance::concatenate;
using conformance::Random;
using conformance::round_to_float;
using conformance::slice;
using conformance::Tensor;
using conformance::type_of;
using conformance::zeros;

}  // namespace shardrun::test
