#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

/// Runs the blocks of CUDA kernels on the processor. Each thread of a block is a fiber: it runs until it waits for
/// other threads or ends. Blocks run one after the other, on the thread that launches the kernel.
///
/// The emulator finds mistakes that a GPU hides:
/// - It runs the threads of a block in a chosen order, so a missing barrier changes the results.
/// - It fills shared memory with NaN before each block.
/// - If threads can never stop waiting for each other, the error names the kernel, the block and the place.
/// - It checks indices of shared memory, and that a block uses no more of it than most_shared_bytes.
namespace shardrun::device::cuda::emulated {

/// The order in which blocks run, and in which the threads of a block run between barriers.
enum class Order : std::uint8_t { forward, reversed, shuffled };

/// Sets the order of this thread's later launches. `seed` is used by `shuffled`.
void set_order(Order order, std::uint64_t seed = 0) noexcept;

/// A place in a kernel's source. (Clang 14 lacks std::source_location.)
struct Where {
  const char* file = nullptr;
  int line = 0;
};

/// One thread of the running block.
struct Strand;

struct Place {
  int thread;
  int threads;
  std::int64_t block;
  std::int64_t blocks;
};
[[nodiscard]] Place place_of(const Strand& strand) noexcept;

/// Implement the functions of Block. If another thread of the block has failed, they unwind the thread's stack.
void wait_for_block(Strand& strand, Where where);
void exchange(Strand& strand, const void* given, void* found, std::size_t bytes, int lane, Where where);
[[nodiscard]] std::uint32_t ballot(Strand& strand, bool value, Where where);
/// Gives at most 24 bytes, and waits until all lanes of the warp have given theirs.
void give(Strand& strand, const void* given, std::size_t bytes, Where where);
/// The bytes that a lane gave in the last give() of the warp. They stay until the next one.
[[nodiscard]] const unsigned char* given_by(const Strand& strand, int lane) noexcept;
/// Throws Error{internal} unless the block has that much shared memory.
void require_shared(const Strand& strand, std::size_t bytes);
[[noreturn]] void fail_shared_index(int index, int count);

/// A thread's unfinished copies to shared memory. finish() makes them. Until then the target is NaN.
class Copies {
 public:
  static constexpr std::size_t bytes = 16;

  /// Throws Error{internal} if an address is not a multiple of 16.
  void add(void* to, const void* from);
  void finish();

 private:
  struct Copy {
    void* to;
    const void* from;
  };
  std::vector<Copy> copies_;
};

/// A kernel launch. `body` is called once for each thread of each block, with the block's shared memory.
struct Launch {
  const char* kernel;  ///< the name of the kernel's type, from typeid
  const void* entry;   ///< the kernel's entry in known_kernels()
  std::int64_t blocks;
  int threads;
  std::size_t shared_bytes;
  void (*body)(const void* kernel, Strand& strand, unsigned char* shared);
  const void* function;
  std::size_t function_bytes = 0;  ///< size of the function object, which can be copied byte by byte
  void* stream = nullptr;          ///< the stream on which it is enqueued; null: it runs at once
};

/// Enqueues a kernel, identified by its entry, on a stream.
using Enqueue = void (*)(void* stream, const void* entry, std::function<void()> work);
/// Sets the function that receives launches on a stream. Tests give the one of a fake of CUDA's runtime, which runs
/// launches later. REQUIRES: set_enqueue() is called before the first such launch.
void set_enqueue(Enqueue enqueue) noexcept;

/// Runs a launch, or enqueues a copy of it on its stream. Throws what the first failing thread throws, Error{internal}
/// if the launch is invalid or threads wait for each other forever, and Error{io} if memory for stacks is lacking.
void run(const Launch& launch);

}  // namespace shardrun::device::cuda::emulated
