// Products by Eigen, for builds without oneDNN.

#include "core/device/cpu/prepared_product.h"
#include "core/device/cpu/sgemm.h"
#include "core/device/machine_level.h"

namespace shardrun::device::cpu {

using Sgemm = decltype(sgemm);

// eigen_sgemm.cpp is compiled for each instruction set. Each compilation defines one of these.
namespace baseline {
Sgemm eigen_sgemm;
}
namespace v3 {
Sgemm eigen_sgemm;
}
namespace v4 {
Sgemm eigen_sgemm;
}

void sgemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Matrix a, Matrix b, float* c,
           std::int64_t c_stride, bool accumulate) {
  Sgemm* multiply = baseline::eigen_sgemm;
#if defined(SHARDRUN_KERNEL_X86_LEVELS)
  static const int level = machine_level();
  multiply = level >= 4 ? v4::eigen_sgemm : level >= 3 ? v3::eigen_sgemm : multiply;
#endif
  multiply(m, n, k, alpha, a, b, c, c_stride, accumulate);
}

void set_up_sgemm(const Product&) {}

/// Eigen has no products that use the CPU's bfloat16 instructions.
const Bf16Product* bf16_product(const Product&, bool) { return nullptr; }

std::string_view bf16_products() noexcept { return "widened to float32"; }

}  // namespace shardrun::device::cpu
