#pragma once

#include "core/conformance/evaluate.h"
#include "tests/support/tensor.h"

namespace shardrun::test {

using conformance::evaluate;
using conformance::execute;
using conformance::Execution;

}  // namespace shardrun::test
