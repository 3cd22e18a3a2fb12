#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/device/apart.h"
#include "core/device/cuda/runtime/cudnn_library.h"
#include "core/device/cuda/runtime/gpu.h"

namespace shardrun::device::cuda {

class CudaQueue;
class LibraryProducts;

/// The GPUs of this machine, of which a process uses one. The constructor makes no CUDA call. It throws Error{job} if a
/// variable that chooses a library has an invalid value.
class CudaDevice final : public DeviceApart {
 public:
  CudaDevice();
  ~CudaDevice() override;

  [[nodiscard]] DeviceFacts facts() const override;
  [[nodiscard]] bool has_units() const noexcept override { return true; }
  [[nodiscard]] std::vector<Unit> units() const override;
  void use_unit(std::size_t unit) const override;
  [[nodiscard]] std::size_t unit() const override { return static_cast<std::size_t>(gpu().number()); }
  [[nodiscard]] MemoryKind memory_kind() const noexcept override { return MemoryKind::cuda; }
  [[nodiscard]] bool can_hold_updates() const noexcept override { return true; }
  [[nodiscard]] std::shared_ptr<const void> pin(std::span<std::byte> memory) const override;
  [[nodiscard]] std::shared_ptr<const Memory> allocate(std::uint64_t bytes) const override;
  [[nodiscard]] std::unique_ptr<Queue> open_queue(Threads& threads) const override;
  [[nodiscard]] std::unique_ptr<Queue> open_transfer_queue(Threads& threads) const override;
  /// Bytes of scratch that are enough for the library's kernel and for our own. They depend on shapes and types alone,
  /// so plans are the same with and without a library.
  [[nodiscard]] std::size_t scratch_bytes(const Kernel& kernel, const graph::OpShape& shape,
                                          int threads) const override;
  /// Matrix products, attention and convolutions are prepared for libraries if these are found (library_ops.h).
  [[nodiscard]] std::unique_ptr<const PreparedKernel> prepare(const Kernel& kernel, const graph::Attributes& attributes,
                                                              std::vector<TensorView> inputs,
                                                              std::vector<TensorView> outputs,
                                                              std::span<std::byte> scratch,
                                                              std::string_view makes) const override;
  /// Fuses ops into a library product's epilogue, or into a fused kernel of our own.
  [[nodiscard]] std::unique_ptr<const PreparedKernel> fuse(const PreparedKernel& first,
                                                           const PreparedKernel& next) const override;

  /// The GPU that use_unit() has chosen, or the first. Throws Error{job} as units() does.
  [[nodiscard]] const Gpu& gpu() const;
  [[nodiscard]] bool is_pinned(const void* memory, std::size_t bytes) const;

  /// The driver's cuStreamWaitValue32 or cuStreamWriteValue32. `word` is an address that the GPU can access.
  using StreamValue = int (*)(cudaStream_t stream, unsigned long long word, unsigned value, unsigned flags);
  struct StreamValues {
    StreamValue wait = nullptr;
    StreamValue write = nullptr;
  };
  /// Each is null if the driver lacks it.
  [[nodiscard]] StreamValues stream_values() const;

  /// The library's products. Null: our own kernels multiply. If the library was asked for, throws as LibraryProducts'
  /// constructor does. Throws Error{job} as find_cublaslt() does.
  [[nodiscard]] LibraryProducts* products() const;
  /// Null: our own kernels compute attention. Throws as start_cudnn() does.
  [[nodiscard]] const FindAttention* attention() const;
  /// Null: our own kernels compute convolutions. Throws as start_cudnn() does.
  [[nodiscard]] const FindConvolution* convolutions() const;

  void add(CudaQueue* queue) const;
  void remove(CudaQueue* queue) const;
  /// Call it after a failure, with which CUDA drops the work of all streams. Abandons the copies of the host, and makes
  /// the dropped calls (Queue::call), because transports wait for these calls before they end a transfer.
  void end_dropped_work() const;
  /// For finished work of all queues, stores the times and answers where the host asked for them.
  void deliver() const;

 private:
  /// Both use one handle of cuDNN.
  struct Dnn {
    FindAttention attention;
    FindConvolution convolutions;
  };
  [[nodiscard]] const Dnn& dnn() const;

  mutable std::mutex mutex_;
  mutable std::optional<Gpu> gpu_;
  mutable std::map<const std::byte*, std::size_t> pinned_;
  mutable std::unique_ptr<LibraryProducts> products_;
  mutable bool products_failed_ = false;  ///< the library did not start, and stderr has said so
  mutable std::optional<Dnn> dnn_;        ///< set when it is first asked for
  mutable std::mutex queues_mutex_;
  mutable std::vector<CudaQueue*> queues_;
};

}  // namespace shardrun::device::cuda
