// Matrix products with oneDNN.

#include <dlfcn.h>
#include <dnnl_debug.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/base/error.h"
#include "core/device/cpu/blocks.h"
#include "core/device/cpu/prepared_product.h"
#include "core/device/cpu/sgemm.h"

namespace shardrun::device::cpu {

namespace {

/// oneDNN's own OpenMP team splits small products badly and spins between calls. Instead, each of our Threads calls
/// oneDNN with a team of one. Each thread sets this for itself. The function is looked up at run time, because it must
/// belong to the OpenMP runtime that oneDNN is linked to, which is not always this compiler's.
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

/// Prints what failed and ends the process. Kernels run on worker threads, which cannot throw an error.
[[noreturn]] void fail(dnnl_status_t status, const char* types, std::int64_t m, std::int64_t n, std::int64_t k) {
  fmt::print(stderr, "shardrun: oneDNN failed to multiply {} matrices of {}x{} and {}x{}: {}\n", types, m, k, k, n,
             dnnl_status2str(status));
  std::abort();
}

dnnl::memory::data_type type_of(const Operand& operand) {
  return operand.dtype == graph::DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc describe(const Operand& operand, std::int64_t rows, std::int64_t columns) {
  const auto strides =
      operand.transposed ? dnnl::memory::dims{1, operand.stride} : dnnl::memory::dims{operand.stride, 1};
  return {{rows, columns}, type_of(operand), strides};
}

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

class OnednnProduct final : public Bf16Product {
 public:
  OnednnProduct(const Product& p, bool accumulate)
      : a_(describe(p.a, p.m, p.k)), b_(describe(p.b, p.k, p.n)), c_(describe(p.c, p.m, p.n)) {
    dnnl::primitive_attr how;
    how.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1);
      how.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc described(engine(), a_, b_, c_, how);
#else
    const dnnl::matmul::primitive_desc described(dnnl::matmul::desc(a_, b_, c_), how, engine());
#endif
    scratch_ = described.scratchpad_desc();
    primitive_ = dnnl::matmul(described);
  }

  [[nodiscard]] std::size_t scratch_bytes() const override { return scratch_.get_size(); }

  void run(const Product& p, std::byte* scratch) const noexcept override {
    stay_on_this_thread();
    try {
      thread_local const dnnl::stream stream(engine());
      Memories& memories = memories_of_this_thread();
      memories.a.set_data_handle(p.a.data);
      memories.b.set_data_handle(p.b.data);
      memories.c.set_data_handle(p.c.data);
      memories.scratch.set_data_handle(scratch);
      const std::array<dnnl_exec_arg_t, 4> arguments = {{{DNNL_ARG_SRC, memories.a.get()},
                                                         {DNNL_ARG_WEIGHTS, memories.b.get()},
                                                         {DNNL_ARG_DST, memories.c.get()},
                                                         {DNNL_ARG_SCRATCHPAD, memories.scratch.get()}}};
      // The C++ interface would build a map of the arguments in each call. (The library itself still copies them.)
      dnnl_status_t status = dnnl_primitive_execute(primitive_.get(), stream.get(), arguments.size(), arguments.data());
      if (status == dnnl_success) {
        status = dnnl_stream_wait(stream.get());
      }
      if (status != dnnl_success) {
        fail(status, "bf16", p.m, p.n, p.k);
      }
    } catch (const dnnl::error& error) {
      fail(error.status, "bf16", p.m, p.n, p.k);
    }
  }

 private:
  /// oneDNN's objects for the matrices and the scratch of a call.
  struct Memories {
    dnnl::memory a;
    dnnl::memory b;
    dnnl::memory c;
    dnnl::memory scratch;
  };

  /// Each thread makes its own in its first call. Products are never freed, so their addresses are unique keys.
  [[nodiscard]] Memories& memories_of_this_thread() const {
    thread_local std::unordered_map<const OnednnProduct*, Memories> made;
    const auto found = made.find(this);
    if (found != made.end()) {
      return found->second;
    }
    const auto unplaced = [](const dnnl::memory::desc& described) {
      return dnnl::memory(described, engine(), nullptr);
    };
    return made.emplace(this, Memories{unplaced(a_), unplaced(b_), unplaced(c_), unplaced(scratch_)}).first->second;
  }

  dnnl::memory::desc a_;
  dnnl::memory::desc b_;
  dnnl::memory::desc c_;
  dnnl::memory::desc scratch_;
  dnnl::matmul primitive_;
};

/// Whether our own loops compute a product. oneDNN needs about 30 ms to generate the machine code of its first product,
/// in which a small job would be done. Up to these limits our loops take 0.7 times as long in the median. They take at
/// most 6 µs longer, or 10 µs for few results of long sums. Beyond the limits, they take several times as long for
/// vectors and for few results of long sums.
constexpr bool is_small(std::int64_t m, std::int64_t n, std::int64_t k) {
  const bool fills_registers = m >= 8 && n >= 4 && k <= 1024;
  return m * n * k <= (fills_registers ? 1 << 20 : 1 << 12);
}

/// The properties that select a product's primitive, in addition to bfloat16 operands.
using Key = std::array<std::int64_t, 10>;

Key key_of(const Product& p, bool accumulate) {
  return {p.m,
          p.n,
          p.k,
          p.a.stride,
          p.a.transposed ? 1 : 0,
          p.b.stride,
          p.b.transposed ? 1 : 0,
          p.c.stride,
          p.c.dtype == graph::DType::bf16 ? 1 : 0,
          accumulate ? 1 : 0};
}

bool uses(dnnl::cpu_isa instructions) noexcept {
  const auto needed = static_cast<unsigned>(instructions);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & needed) == needed;
}

/// Whether this CPU has bfloat16 instructions that oneDNN uses. Without them, float32 products are faster.
bool has_bfloat_instructions() noexcept {
  static const bool found = uses(dnnl::cpu_isa::avx512_core_bf16);
  return found;
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
  if (is_small(m, n, k)) {
    block_loops().multiply(m, n, k, alpha, a, b, c, c_stride, accumulate);
    return;
  }
  stay_on_this_thread();
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, alpha, a.data,
                                          a.stride, b.data, b.stride, accumulate ? 1.0F : 0.0F, c, c_stride);
  if (status != dnnl_success) {
    fail(status, "f32", m, n, k);
  }
}

void set_up_sgemm(const Product& product) {
  if (is_small(product.m, product.n, product.k)) {
    return;
  }
  static const bool once = [] {
    constexpr std::int64_t size = 128;
    static_assert(!is_small(size, size, size));
    const std::vector<float> matrix(size * size);
    std::vector<float> product(size * size);
    sgemm(size, size, size, 1, {matrix.data(), size}, {matrix.data(), size}, product.data(), size, false);
    return true;
  }();
  static_cast<void>(once);
}

const Bf16Product* bf16_product(const Product& product, bool accumulate) {
  const auto is_bfloat = [](const Operand& operand) { return operand.dtype == graph::DType::bf16; };
  if (!is_bfloat(product.a) || !is_bfloat(product.b) || product.m == 0 || product.n == 0 || product.k == 0 ||
      !has_bfloat_instructions()) {
    return nullptr;
  }
  using Products = std::map<Key, std::unique_ptr<const OnednnProduct>>;
  static std::mutex mutex;
  static Products& products = *new Products;  // never destroyed: at exit the library's own objects can be gone already
  const std::scoped_lock lock(mutex);
  std::unique_ptr<const OnednnProduct>& shared = products[key_of(product, accumulate)];
  if (shared == nullptr) {
    stay_on_this_thread();  // a primitive is compiled for the number of threads set now
    try {
      shared = std::make_unique<const OnednnProduct>(product, accumulate);
    } catch (const dnnl::error& error) {
      throw Error(ErrorCode::internal, fmt::format("oneDNN cannot prepare a bf16 product of {}x{}x{}: {}", product.m,
                                                   product.n, product.k, error.what()));
    }
  }
  return shared.get();
}

std::string_view bf16_products() noexcept {
  return !has_bfloat_instructions()             ? "widened to float32"
         : uses(dnnl::cpu_isa::avx512_core_amx) ? "oneDNN with AMX"
                                                : "oneDNN with AVX512-BF16";
}

}  // namespace shardrun::device::cpu
