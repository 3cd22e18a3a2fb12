#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

/// Runs the blocks of CUDA kernels on the processor. Each thread of a block is a fiber: it runs until it waits for
/// other threads or ends. Blocks run one after the other, on the thread that launches the kernel.
///
/// An emulated launch finds mistakes that a GPU hides:
/// - The threads of a block run in a chosen order, so a missing barrier shows as other numbers.
/// - Shared memory is filled with NaN before each block.
/// - Threads that wait for each other in vain are an error that names the kernel, the block and the place.
/// - Indices of shared memory are checked, and that a block takes no more of it than every GPU has.
namespace shardrun::device::cuda::emulated {

/// The order in which blocks, and the threads of a block, run between barriers.
enum class Order : std::uint8_t { forward, reversed, shuffled };

/// The order of later launches of this thread. `seed`: of `shuffled`.
void set_order(Order order, std::uint64_t seed = 0) noexcept;

/// A place in a kernel. Not std::source_location, which Clang 14 lacks.
struct Where {
  const char* file = nullptr;
  int line = 0;
};

/// One thread of the block that runs.
struct Strand;

struct Place {
  int thread;
  int threads;
  std::int64_t block;
  std::int64_t blocks;
};
[[nodiscard]] Place place_of(const Strand& strand) noexcept;

/// See Block. Throw Error{internal} when another thread of the block has failed.
void wait_for_block(Strand& strand, Where where);
void exchange(Strand& strand, const void* given, void* found, std::size_t bytes, int lane, Where where);
[[nodiscard]] std::uint32_t ballot(Strand& strand, bool value, Where where);
/// Waits until all lanes of the warp have given something: at most 24 bytes.
void give(Strand& strand, const void* given, std::size_t bytes, Where where);
/// The bytes that a lane gave in the last give() of the warp. They stay until the next one.
[[nodiscard]] const unsigned char* given_by(const Strand& strand, int lane) noexcept;
/// Throws Error{internal} unless the block has that much shared memory.
void require_shared(const Strand& strand, std::size_t bytes);
[[noreturn]] void fail_shared_index(int index, int count);

/// A thread's copies to shared memory under way. They are made when it waits for them: until then there is NaN.
class Copies {
 public:
  static constexpr std::size_t bytes = 16;

  /// Throws Error{internal} when an address is not a multiple of 16.
  void add(void* to, const void* from);
  void finish();

 private:
  struct Copy {
    void* to;
    const void* from;
  };
  std::vector<Copy> copies_;
};

/// A kernel to run. `body` is called once for each thread of each block, with the block's shared memory.
struct Launch {
  const char* kernel;  ///< the name of its type, as typeid has it
  const void* entry;   ///< as known_kernels() has it
  std::int64_t blocks;
  int threads;
  std::size_t shared_bytes;
  void (*body)(const void* kernel, Strand& strand, unsigned char* shared);
  const void* function;
  std::size_t function_bytes = 0;  ///< of the function object, which can be copied byte by byte
  void* stream = nullptr;          ///< on which it is enqueued; null: it runs at once
};

/// Enqueues a kernel, known by its entry, on a stream.
using Enqueue = void (*)(void* stream, const void* entry, std::function<void()> work);
/// Where launches on a stream go: to a fake of CUDA's runtime, which runs them later. REQUIRES: it is called before the
/// first of them.
void set_enqueue(Enqueue enqueue) noexcept;

/// Runs it, or enqueues a copy of it on its stream. Throws what a thread throws, and Error{internal} if threads can
/// never go on.
void run(const Launch& launch);

}  // namespace shardrun::device::cuda::emulated
