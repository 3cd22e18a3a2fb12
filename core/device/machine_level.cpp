#include "core/device/machine_level.h"

namespace shardrun::device {

int machine_level() noexcept {
#if defined(SHARDRUN_KERNEL_X86_LEVELS)
  // These are exactly the features for which CMakeLists.txt compiles the variants.
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return v4 ? 4 : v3 ? 3 : 0;
#else
  return 0;
#endif
}

}  // namespace shardrun::device
