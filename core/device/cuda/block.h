#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/on_device.h"

#if !defined(__CUDACC__)
#include "core/device/cuda/emulated/emulator.h"
#endif

/// A kernel's view of the GPU. A kernel is a function object that every thread of a block calls:
///
///   struct Double {
///     const float* x;
///     SHARDRUN_ON_DEVICE void operator()(Block& block) const { … }
///   };
///
/// nvcc maps Block to CUDA's built-in variables and functions. Other compilers map it to the emulator
/// (emulated/emulator.h), where each thread of a block is a fiber.
namespace shardrun::device::cuda {

inline constexpr int warp_size = 32;

/// Bytes at the start of a block's shared memory that block_join() uses. launch() adds them to each kernel's own.
inline constexpr std::size_t join_bytes = 32 * sizeof(double);

/// The shared memory, in bytes, that a block may have on every GPU since compute capability 8.0. Many GPUs allow more.
inline constexpr std::size_t most_shared_bytes = 99 * 1024;

/// An array in the shared memory of a block. The emulator throws Error{internal} for an index outside of it.
template <typename T>
class Shared {
 public:
#if defined(__CUDACC__)
  SHARDRUN_ON_DEVICE Shared(T* data, int) : data_(data) {}
  SHARDRUN_ON_DEVICE T& operator[](int index) const { return data_[index]; }
#else
  Shared(T* data, int count) : data_(data), count_(count) {}
  T& operator[](int index) const {
    if (index < 0 || index >= count_) {
      emulated::fail_shared_index(index, count_);
    }
    return data_[index];
  }
#endif

 private:
  T* data_;
#if !defined(__CUDACC__)
  int count_;
#endif
};

/// One thread's view of its block. All threads of a block must make the same calls of sync() and shared(). All lanes of
/// a warp must make the same calls of exchange(), ballot() and sync_warp().
class Block {
 public:
#if defined(__CUDACC__)
  SHARDRUN_ON_DEVICE explicit Block(unsigned char* memory) : memory_(memory) {}
  [[nodiscard]] SHARDRUN_ON_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  [[nodiscard]] SHARDRUN_ON_DEVICE int threads() const { return static_cast<int>(blockDim.x); }
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t index() const { return blockIdx.x; }
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t blocks() const { return gridDim.x; }
  SHARDRUN_ON_DEVICE void sync() { __syncthreads(); }
  template <typename T>
  [[nodiscard]] SHARDRUN_ON_DEVICE T exchange(T value, int lane) {
    return __shfl_sync(0xFFFFFFFFU, value, lane);
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE std::uint32_t ballot(bool value) { return __ballot_sync(0xFFFFFFFFU, value); }
  SHARDRUN_ON_DEVICE void sync_warp() { __syncwarp(); }
  template <typename T>
  SHARDRUN_ON_DEVICE void copy_later(const Shared<T>& to, int index, const void* from) {
    static_assert(sizeof(T) == 16);
#if defined(__CUDA_ARCH__)
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(&to[index]));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(__cvta_generic_to_global(from))
                 : "memory");
#endif
  }
  SHARDRUN_ON_DEVICE void wait_for_copies() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  }
#else
  Block(emulated::Strand& strand, unsigned char* memory) : strand_(strand), memory_(memory) {}
  /// The number of this thread in its block, from 0.
  [[nodiscard]] int thread() const { return emulated::place_of(strand_).thread; }
  /// The number of threads in each block: a multiple of warp_size.
  [[nodiscard]] int threads() const { return emulated::place_of(strand_).threads; }
  /// The number of this block, from 0.
  [[nodiscard]] std::int64_t index() const { return emulated::place_of(strand_).block; }
  [[nodiscard]] std::int64_t blocks() const { return emulated::place_of(strand_).blocks; }
  /// Waits until all threads of the block have called it. Their earlier writes to shared memory can then be read.
  void sync(emulated::Where where = {__builtin_FILE(), __builtin_LINE()}) { emulated::wait_for_block(strand_, where); }
  /// Gives `value` to the other lanes, and returns the value given by `lane` of this warp. T has at most 8 bytes.
  /// REQUIRES: `lane` is from 0 to 31.
  template <typename T>
  [[nodiscard]] T exchange(T value, int lane, emulated::Where where = {__builtin_FILE(), __builtin_LINE()}) {
    static_assert(sizeof(T) <= sizeof(double));
    T found;
    emulated::exchange(strand_, &value, &found, sizeof(T), lane, where);
    return found;
  }
  /// Gives `value` to the other lanes. Bit i of the result is the value of lane i of the warp.
  [[nodiscard]] std::uint32_t ballot(bool value, emulated::Where where = {__builtin_FILE(), __builtin_LINE()}) {
    return emulated::ballot(strand_, value, where);
  }
  /// Waits until all lanes of the warp have called it. Their earlier writes to shared memory can then be read.
  void sync_warp(emulated::Where where = {__builtin_FILE(), __builtin_LINE()}) {
    static_cast<void>(emulated::ballot(strand_, false, where));
  }
  /// Begins to copy 16 bytes, aligned to 16, to an element of shared memory without using registers. wait_for_copies()
  /// waits for the end.
  template <typename T>
  void copy_later(const Shared<T>& to, int index, const void* from) {
    static_assert(sizeof(T) == 16);
    copies_.add(&to[index], from);
  }
  /// Waits for the copies that this thread began. Other threads see them after the next sync().
  void wait_for_copies() { copies_.finish(); }
  [[nodiscard]] emulated::Strand& strand() const { return strand_; }
#endif
  [[nodiscard]] SHARDRUN_ON_DEVICE int lane() const { return thread() % warp_size; }
  [[nodiscard]] SHARDRUN_ON_DEVICE int warp() const { return thread() / warp_size; }
  [[nodiscard]] SHARDRUN_ON_DEVICE int warps() const { return threads() / warp_size; }

  /// Reserves the next `count` elements of the block's shared memory, aligned to 16 bytes, with undefined contents.
  template <typename T>
  [[nodiscard]] SHARDRUN_ON_DEVICE Shared<T> shared(int count) {
    const std::size_t begin = used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 15) / 16 * 16;
#if !defined(__CUDACC__)
    emulated::require_shared(strand_, begin + static_cast<std::size_t>(count) * sizeof(T));
#endif
    return {reinterpret_cast<T*>(memory_ + begin), count};
  }

  /// The shared memory in which block_join() keeps one value per warp.
  template <typename T>
  [[nodiscard]] SHARDRUN_ON_DEVICE Shared<T> join_values() {
    static_assert(sizeof(T) <= sizeof(double));
    return {reinterpret_cast<T*>(memory_), 32};
  }

 private:
#if !defined(__CUDACC__)
  emulated::Strand& strand_;
  emulated::Copies copies_;
#endif
  unsigned char* memory_;
  std::size_t used_ = join_bytes;
};

/// Bytes of shared memory that shared<T>(count) takes.
template <typename T>
[[nodiscard]] constexpr std::size_t shared_bytes(int count) {
  return (static_cast<std::size_t>(count) * sizeof(T) + 15) / 16 * 16;
}

struct Plus {
  template <typename T>
  [[nodiscard]] SHARDRUN_ON_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
/// The larger number; NaN if one of the two is.
struct Larger {
  template <typename T>
  [[nodiscard]] SHARDRUN_ON_DEVICE T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE float operator()(float a, float b) const {
#if defined(__CUDA_ARCH__)
    float larger;  // a single instruction
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
#else
    return a > b || a != a ? a : b;
#endif
  }
};
/// The smaller number; NaN if one of the two is.
struct Smaller {
  template <typename T>
  [[nodiscard]] SHARDRUN_ON_DEVICE T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};

/// Combines the values of a warp's lanes. All lanes get the same bits if join(a, b) and join(b, a) have the same bits.
template <typename T, typename Join>
[[nodiscard]] SHARDRUN_ON_DEVICE inline T warp_join(Block& block, T value, const Join& join) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2) {
    value = join(value, block.exchange(value, block.lane() ^ distance));
  }
  return value;
}

/// Combines the values of all threads of the block, in an order that depends only on their number. All get the result.
template <typename T, typename Join>
[[nodiscard]] SHARDRUN_ON_DEVICE inline T block_join(Block& block, T value, const Join& join) {
  value = warp_join(block, value, join);
  if (block.warps() == 1) {
    return value;
  }
  const Shared<T> values = block.join_values<T>();
  if (block.lane() == 0) {
    values[block.warp()] = value;
  }
  block.sync();
  value = values[0];
  for (int warp = 1; warp < block.warps(); ++warp) {
    value = join(value, values[warp]);
  }
  block.sync();  // before the next block_join() writes
  return value;
}

template <typename T>
[[nodiscard]] SHARDRUN_ON_DEVICE inline T warp_sum(Block& block, T value) {
  return warp_join(block, value, Plus{});
}
template <typename T>
[[nodiscard]] SHARDRUN_ON_DEVICE inline T block_sum(Block& block, T value) {
  return block_join(block, value, Plus{});
}

}  // namespace shardrun::device::cuda
