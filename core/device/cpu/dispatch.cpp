#include <string_view>

#include "core/device/cpu/block_product.h"
#include "core/device/cpu/blocks.h"
#include "core/device/cpu/element_nest.h"
#include "core/device/cpu/few_rows.h"
#include "core/device/cpu/variant.h"

namespace shardrun::device::cpu {

// blocks.cpp, block_product.cpp, few_rows.cpp and element_nest.cpp are compiled for each instruction set, and
// bfloat_rows.cpp for AVX-512 alone. Each compilation defines one of the following constants.
namespace baseline {
extern const BlockLoops loops_of_blocks;
extern const BlockRunner block_runner;
extern const FewRowsRunner few_rows_runner;
extern const NestRunner nest_runner;
}  // namespace baseline
namespace v3 {
extern const BlockLoops loops_of_blocks;
extern const BlockRunner block_runner;
extern const FewRowsRunner few_rows_runner;
extern const NestRunner nest_runner;
}  // namespace v3
namespace v4 {
extern const BlockLoops loops_of_blocks;
extern const BlockRunner block_runner;
extern const FewRowsRunner bfloat_rows_runner;
extern const FewRowsRunner few_rows_runner;
extern const NestRunner nest_runner;
}  // namespace v4

namespace {

/// The variants of all files that this machine can run, in the order of registration.
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

#if defined(SHARDRUN_KERNEL_X86_LEVELS)
#define SHARDRUN_OF_MACHINE(name) (machine_level() >= 4 ? v4::name : machine_level() >= 3 ? v3::name : baseline::name)
#else
#define SHARDRUN_OF_MACHINE(name) (baseline::name)
#endif

const BlockLoops& block_loops() noexcept { return SHARDRUN_OF_MACHINE(loops_of_blocks); }

std::size_t block_product_scratch(std::int64_t m, std::int64_t k) {
  return static_cast<std::size_t>(m * ((k + 63) / 64)) * block_product_pair_bytes;
}

std::vector<BlockRunner> block_runners() {
  std::vector<BlockRunner> runners = {baseline::block_runner};
#if defined(SHARDRUN_KERNEL_X86_LEVELS)
  if (machine_level() >= 3) {
    runners.push_back(v3::block_runner);
  }
  // A few CPUs with AVX-512 lack VNNI. They multiply with AVX2.
  if (machine_level() >= 4 && __builtin_cpu_supports("avx512vnni")) {
    runners.push_back(v4::block_runner);
  }
#endif
  return runners;
}

void multiply_blocks(const BlockProduct& product, Threads& threads, std::byte* scratch) {
  static const BlockRunner runner = block_runners().back();
  runner(product, threads, scratch);
}

bool has_few_rows(const Product& p) noexcept {
  const std::int64_t most = p.b.transposed ? 64 : 32;  // rows up to which these loops are about as fast as a library
  constexpr std::int64_t worthwhile = 1 << 14;         // weights from which on these loops are not slower
  using graph::DType;
  if (p.c.dtype != DType::f32 || p.a.transposed || p.m == 0) {
    return false;
  }
  if (p.a.dtype == DType::bf16) {
    return p.b.dtype == DType::bf16 && p.fixed_order;
  }
  const bool halves = p.b.dtype == DType::bf16 || p.b.dtype == DType::f16;
  return p.a.dtype == DType::f32 &&
         (halves || (p.b.dtype == DType::f32 && (p.fixed_order || (p.m <= most && p.n * p.k >= worthwhile))));
}

std::vector<FewRowsRunner> few_rows_runners(graph::DType of_a) {
  std::vector<FewRowsRunner> runners = {baseline::few_rows_runner};
#if defined(SHARDRUN_KERNEL_X86_LEVELS)
  if (machine_level() >= 3) {
    runners.push_back(v3::few_rows_runner);
  }
  if (machine_level() >= 4) {
    runners.push_back(v4::few_rows_runner);
  }
  if (of_a == graph::DType::bf16 && machine_level() >= 4 && __builtin_cpu_supports("avx512bf16")) {
    runners.push_back(v4::bfloat_rows_runner);
  }
#else
  static_cast<void>(of_a);
#endif
  return runners;
}

void multiply_few_rows(const Product& product, bool accumulate, Threads& threads) {
  static const FewRowsRunner of_floats = few_rows_runners(graph::DType::f32).back();
  static const FewRowsRunner of_bfloats = few_rows_runners(graph::DType::bf16).back();
  (product.a.dtype == graph::DType::bf16 ? of_bfloats : of_floats)(product, accumulate, threads);
}

void run_nest(const ElementNest& nest, const KernelCall& call) { SHARDRUN_OF_MACHINE(nest_runner)(nest, call); }

}  // namespace shardrun::device::cpu
