#include "core/device/machine_level.h"

#if defined(SHARDRUN_KERNEL_X86_LEVELS)
#include <cpuid.h>
#endif

namespace shardrun::device {

#if defined(SHARDRUN_KERNEL_X86_LEVELS)
namespace {

/// Clang 14's __builtin_cpu_supports does not know this feature.
bool has_f16c() noexcept {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace
#endif

int machine_level() noexcept {
#if defined(SHARDRUN_KERNEL_X86_LEVELS)
  // These are exactly the features for which CMakeLists.txt compiles the variants. The result is kept, because
  // the cpuid instruction takes microseconds in a virtual machine.
  static const int level = [] {
    __builtin_cpu_init();
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return v4 ? 4 : v3 ? 3 : 0;
  }();
  return level;
#else
  return 0;
#endif
}

}  // namespace shardrun::device
