#include <string_view>

#include "core/device/cpu/variant.h"

namespace shardrun::device::cpu {

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

}  // namespace shardrun::device::cpu
