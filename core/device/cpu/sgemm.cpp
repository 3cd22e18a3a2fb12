#include "core/device/cpu/sgemm.h"

#include <dlfcn.h>
#include <dnnl.h>

#include <algorithm>
#include <cstdlib>

namespace shardrun::device::cpu {

namespace {

/// oneDNN's own OpenMP team splits small products badly and spins between calls; our Threads call it from each of their
/// threads instead. The setting is per thread. The function is looked up at run time because it must be that of the
/// OpenMP runtime that oneDNN was linked to, which need not be this compiler's.
void stay_on_this_thread() {
  using SetThreads = void (*)(int);
  static const auto set_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  thread_local const bool once = [] {
    if (set_threads != nullptr) {
      set_threads(1);
    }
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

void sgemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Matrix a, Matrix b, float* c,
           std::int64_t c_stride, bool accumulate) {
  if (m == 0 || n == 0) {
    return;
  }
  if (k == 0) {
    for (std::int64_t i = 0; i < m && !accumulate; ++i) {
      std::fill_n(c + i * c_stride, n, 0.0F);
    }
    return;
  }
  stay_on_this_thread();
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, alpha, a.data,
                                          a.stride, b.data, b.stride, accumulate ? 1.0F : 0.0F, c, c_stride);
  if (status != dnnl_success) {
    // The only remaining failure is out of memory inside the library. A kernel, perhaps on a worker, cannot report it.
    std::abort();
  }
}

}  // namespace shardrun::device::cpu
