// Products by oneDNN.

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <dnnl.hpp>

#include "core/base/error.h"
#include "core/device/cpu/bf16_product.h"
#include "core/device/cpu/sgemm.h"

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

/// A kernel, perhaps on a worker, cannot report an error. The only one that remains is out of memory inside the
/// library.
void require_success(dnnl_status_t status) {
  if (status != dnnl_success) {
    std::abort();
  }
}

dnnl::memory::data_type type_of(const Operand& operand) {
  return operand.dtype == graph::DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc describe(const Operand& operand, std::int64_t rows, std::int64_t columns) {
  const auto strides =
      operand.transposed ? dnnl::memory::dims{1, operand.stride} : dnnl::memory::dims{operand.stride, 1};
  return {{rows, columns}, type_of(operand), strides};
}

/// oneDNN's primitive, its two forms, and the memory objects of one call.
class OnednnProduct final : public Bf16Product {
 public:
  OnednnProduct(const dnnl::engine& engine, const Product& p)
      : a_(describe(p.a, p.m, p.k), engine, nullptr),
        b_(describe(p.b, p.k, p.n), engine, nullptr),
        c_(describe(p.c, p.m, p.n), engine, nullptr),
        overwrite_(describe_product(engine, false)),
        add_(describe_product(engine, true)),
        scratch_overwrite_(overwrite_.scratchpad_desc(), engine, nullptr),
        scratch_add_(add_.scratchpad_desc(), engine, nullptr),
        overwriting_(overwrite_),
        adding_(add_),
        stream_(engine) {}

  [[nodiscard]] std::size_t scratch_bytes() const override {
    return std::max(overwrite_.scratchpad_desc().get_size(), add_.scratchpad_desc().get_size());
  }

  void run(const Product& product, bool accumulate, std::byte* scratch) override {
    stay_on_this_thread();
    dnnl::memory& room = accumulate ? scratch_add_ : scratch_overwrite_;
    a_.set_data_handle(product.a.data);
    b_.set_data_handle(product.b.data);
    c_.set_data_handle(product.c.data);
    room.set_data_handle(scratch);
    const std::array<dnnl_exec_arg_t, 4> arguments = {{{DNNL_ARG_SRC, a_.get()},
                                                       {DNNL_ARG_WEIGHTS, b_.get()},
                                                       {DNNL_ARG_DST, c_.get()},
                                                       {DNNL_ARG_SCRATCHPAD, room.get()}}};
    const dnnl::matmul& primitive = accumulate ? adding_ : overwriting_;
    // The C++ interface would allocate a map of the arguments.
    require_success(dnnl_primitive_execute(primitive.get(), stream_.get(), arguments.size(), arguments.data()));
    require_success(dnnl_stream_wait(stream_.get()));
  }

 private:
  [[nodiscard]] dnnl::matmul::primitive_desc describe_product(const dnnl::engine& engine, bool accumulate) const {
    dnnl::primitive_attr how;
    how.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1);
      how.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    return {engine, a_.get_desc(), b_.get_desc(), c_.get_desc(), how};
#else
    return {dnnl::matmul::desc(a_.get_desc(), b_.get_desc(), c_.get_desc()), how, engine};
#endif
  }

  dnnl::memory a_;
  dnnl::memory b_;
  dnnl::memory c_;
  dnnl::matmul::primitive_desc overwrite_;
  dnnl::matmul::primitive_desc add_;
  dnnl::memory scratch_overwrite_;
  dnnl::memory scratch_add_;
  dnnl::matmul overwriting_;
  dnnl::matmul adding_;
  dnnl::stream stream_;
};

/// Whether oneDNN multiplies bfloat16 with instructions of this CPU. On others it would do so more slowly than float32.
bool has_bfloat_instructions() {
  constexpr auto needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  static const bool found = (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & needed) == needed;
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
  stay_on_this_thread();
  require_success(dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, alpha, a.data, a.stride,
                             b.data, b.stride, accumulate ? 1.0F : 0.0F, c, c_stride));
}

std::unique_ptr<Bf16Product> make_bf16_product(const Product& product) {
  const auto is_bfloat = [](const Operand& operand) { return operand.dtype == graph::DType::bf16; };
  if (!is_bfloat(product.a) || !is_bfloat(product.b) || product.m == 0 || product.n == 0 || product.k == 0 ||
      !has_bfloat_instructions()) {
    return nullptr;
  }
  stay_on_this_thread();  // the primitive is made for the number of threads that is set now
  try {
    static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    return std::make_unique<OnednnProduct>(engine, product);
  } catch (const dnnl::error& error) {
    throw Error(ErrorCode::internal, fmt::format("oneDNN cannot prepare a bf16 product of {}x{}x{}: {}", product.m,
                                                 product.n, product.k, error.what()));
  }
}

}  // namespace shardrun::device::cpu
