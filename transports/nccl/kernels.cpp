#include "transports/nccl/kernels.h"

#include <shardrun/transport.h>

#include <algorithm>
#include <cstddef>

#ifdef SHARDRUN_NCCL_FATBIN
// The file that nvcc made, as read-only data. The driver chooses the code in it that fits the GPU.
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".local shardrun_nccl_fatbin\n"
    "shardrun_nccl_fatbin:\n"
    ".incbin \"" SHARDRUN_NCCL_FATBIN
    "\"\n"
    ".popsection\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char shardrun_nccl_fatbin[];
#endif

namespace shardrun::nccl_transport {
namespace {

constexpr std::array<const char*, 4> names_of_functions = {"sum", "product", "to_keys", "to_numbers"};
constexpr std::array<const char*, 4> names_of_dtypes = {"f32", "f64", "f16", "bf16"};
constexpr unsigned threads_of_block = 256;
/// The largest number of blocks: enough to use the memory's full bandwidth, and each thread gets several elements.
constexpr std::uint64_t most_blocks = 512;

std::size_t index_of(std::uint32_t dtype) noexcept {
  switch (dtype) {
    case SR_DTYPE_F64: return 1;
    case SR_DTYPE_F16: return 2;
    case SR_DTYPE_BF16: return 3;
    default: return 0;
  }
}

}  // namespace

#ifdef SHARDRUN_NCCL_FATBIN
bool has_kernels() noexcept { return true; }

Kernels::Kernels(const Cuda& cuda) : cuda_(cuda) {
  check(cuda, cuda.module_load(&module_, shardrun_nccl_fatbin), "loading the transport's kernels");
  for (std::size_t function = 0; function < functions; ++function) {
    for (std::size_t dtype = 0; dtype < dtypes; ++dtype) {
      const std::string name = std::string("shardrun_") + names_of_functions[function] + "_" + names_of_dtypes[dtype];
      check(cuda, cuda.module_function(&functions_[function][dtype], module_, name.c_str()),
            "loading the transport's kernel " + name);
    }
  }
}
#else
bool has_kernels() noexcept { return false; }

Kernels::Kernels(const Cuda& cuda) : cuda_(cuda) {}
#endif

Kernels::~Kernels() {
  if (module_ != nullptr) {
    (void)cuda_.module_unload(module_);
  }
}

void Kernels::launch(const KernelCall& call, CUstream stream, const std::string& what) const {
  const std::uint64_t count = std::visit([](const auto& arguments) { return arguments.count; }, call.arguments);
  const auto blocks =
      static_cast<unsigned>(std::min<std::uint64_t>((count + threads_of_block - 1) / threads_of_block, most_blocks));
  const CUfunction function = functions_[static_cast<std::size_t>(call.function)][index_of(call.dtype)];
  std::visit(
      [&](auto arguments) {
        void* parameters[] = {&arguments};
        check(cuda_,
              cuda_.launch_kernel(function, blocks, 1, 1, threads_of_block, 1, 1, 0, stream, parameters, nullptr),
              what);
      },
      call.arguments);
}

}  // namespace shardrun::nccl_transport
