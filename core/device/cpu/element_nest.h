#pragma once

#include <cstdint>

#include "core/device/device.h"

namespace shardrun::device::cpu {

/// One loop of a nest: its number of iterations, and the distance in elements between iterations in a, b and y.
struct NestLoop {
  std::int64_t size = 1;
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t y = 0;
};

/// Nested loops, the innermost first.
struct NestLoops {
  int count = 0;
  NestLoop loops[2 * max_rank] = {};  // for two operands of max_rank dimensions each
};

/// y (+)= Σ a b, element by element. Each of the three tensors can lack dimensions that others have.
struct ElementNest {
  enum class Operands { both_consecutive, a_consecutive, strided };

  NestLoop vectors;        ///< the loop that is vectorized
  Operands operands = {};  ///< the strides of `vectors` in a and b; `a_consecutive`: it reads one element of b
  bool sums = false;       ///< `vectors` runs over a dimension that y lacks
  bool swapped = false;    ///< `a` is the op's second operand
  NestLoops kept;          ///< the other loops over dimensions of y
  NestLoops summed;        ///< the other loops over dimensions that y lacks
};

using NestRunner = void (*)(const ElementNest& nest, const KernelCall& call);

/// Computes the nest with this machine's best instruction set, on all threads.
void run_nest(const ElementNest& nest, const KernelCall& call);

}  // namespace shardrun::device::cpu
