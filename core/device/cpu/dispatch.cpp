#include <string_view>

#include "core/device/cpu/blocks.h"
#include "core/device/cpu/variant.h"

namespace shardrun::device::cpu {

// blocks.cpp is compiled for each instruction set and defines one in each.
namespace baseline {
extern const BlockLoops loops_of_blocks;
}
namespace v3 {
extern const BlockLoops loops_of_blocks;
}
namespace v4 {
extern const BlockLoops loops_of_blocks;
}

namespace {

/// All files' variants, in the order they registered.
std::vector<Variant>& runnable() {
  static std::vector<Variant> variants;
  return variants;
}

}  // namespace

std::vector<LevelKernel> kernels_of(std::string_view op) {
  std::vector<LevelKernel> found;
  for (const Variant& variant : runnable()) {
    for (const OpKernel* k = variant.begin; k != variant.end; ++k) {
      if (op == k->op) {
        found.push_back({variant.level, k->kernel});
      }
    }
  }
  return found;
}

RegisterVariants::RegisterVariants(std::initializer_list<Variant> variants) {
  for (const Variant& variant : variants) {
    if (variant.level > machine_level()) {
      continue;
    }
    runnable().push_back(variant);
    for (const OpKernel* k = variant.begin; k != variant.end; ++k) {
      RegisterKernel("cpu", k->op, k->kernel, variant.level);
    }
  }
}

const BlockLoops& block_loops() noexcept {
#if defined(SHARDRUN_KERNEL_X86_LEVELS)
  if (machine_level() >= 3) {
    return machine_level() >= 4 ? v4::loops_of_blocks : v3::loops_of_blocks;
  }
#endif
  return baseline::loops_of_blocks;
}

}  // namespace shardrun::device::cpu
