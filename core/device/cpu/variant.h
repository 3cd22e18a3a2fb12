#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "core/device/device.h"
#include "core/device/machine_level.h"

/// Files of loops are compiled several times, each time for another instruction set (CMakeLists.txt here): the variants
/// `baseline`, `v3` (AVX2) and `v4` (AVX-512). The program chooses one when it starts.
///
/// Two things would break the program on an old machine, and are therefore avoided:
/// - Code that runs before the choice is made. A variant defines only constant tables; the baseline registers them.
/// - Inline functions and templates shared with other files. The linker keeps one copy of such a function, which can be
///   the AVX-512 one. So everything that a variant defines is in its own namespace or local to its file, and it uses no
///   standard templates. The test `cpu_variants_export_nothing` checks the object files.
#ifndef SHARDRUN_KERNEL_VARIANT
#define SHARDRUN_KERNEL_VARIANT baseline
#endif

namespace shardrun::device::cpu {

struct OpKernel {
  const char* op;
  Kernel kernel;
};

/// The kernels of one file for one instruction set. `level` is as machine_level() returns it.
struct Variant {
  int level;
  const OpKernel* begin;
  const OpKernel* end;
};

/// An op's kernel for one instruction set. kernels_of() returns those that this machine can run.
struct LevelKernel {
  int level;
  Kernel kernel;
};
[[nodiscard]] std::vector<LevelKernel> kernels_of(std::string_view op);

/// Registers the variants of a file that this machine can run.
class RegisterVariants {
 public:
  RegisterVariants(std::initializer_list<Variant> variants);
};

}  // namespace shardrun::device::cpu

#define SHARDRUN_DECLARE_KERNELS(variant, family) \
  namespace variant {                             \
  extern const OpKernel* const family##_begin;    \
  extern const OpKernel* const family##_end;      \
  }

#if !defined(SHARDRUN_KERNEL_BASELINE)
#define SHARDRUN_REGISTER_VARIANTS(family)
#elif defined(SHARDRUN_KERNEL_X86_LEVELS)
#define SHARDRUN_REGISTER_VARIANTS(family)                                                                \
  SHARDRUN_DECLARE_KERNELS(v3, family)                                                                    \
  SHARDRUN_DECLARE_KERNELS(v4, family)                                                                    \
  static const RegisterVariants register_##family({{0, baseline::family##_begin, baseline::family##_end}, \
                                                   {3, v3::family##_begin, v3::family##_end},             \
                                                   {4, v4::family##_begin, v4::family##_end}});
#else
#define SHARDRUN_REGISTER_VARIANTS(family) \
  static const RegisterVariants register_##family({{0, baseline::family##_begin, baseline::family##_end}});
#endif

/// Ends a file of loops. Use outside of any namespace: `SHARDRUN_KERNELS(activation, {"gelu", {.run = gelu}}, …)`.
#define SHARDRUN_KERNELS(family, ...)                                 \
  namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {          \
  static constinit const OpKernel family##_kernels[] = {__VA_ARGS__}; \
  }                                                                   \
  SHARDRUN_KERNEL_TABLE(family, family##_kernels)

/// Like SHARDRUN_KERNELS, but takes an array of kernels.
#define SHARDRUN_KERNEL_TABLE(family, array)                                               \
  namespace shardrun::device::cpu {                                                        \
  SHARDRUN_DECLARE_KERNELS(SHARDRUN_KERNEL_VARIANT, family)                                \
  namespace SHARDRUN_KERNEL_VARIANT {                                                      \
  constinit const OpKernel* const family##_begin = array;                                  \
  constinit const OpKernel* const family##_end = array + sizeof(array) / sizeof(OpKernel); \
  }                                                                                        \
  SHARDRUN_REGISTER_VARIANTS(family)                                                       \
  }
