#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

/// CUDA's runtime without a GPU, for tests.
///
/// - Memory of the GPU is mapped only while work uses it: whoever else touches it gets SIGSEGV, and so does work that
///   touches freed memory or memory behind the end.
/// - Streams do nothing until the host waits. Then one thread does what the wait needs, and as much of the rest as
/// chance
///   wants: each time it takes any stream whose next work may be done. A missing event shows as wrong numbers.
/// - Copies must lie within one allocation, and their host memory must be pinned: else they are refused.
/// - Functions of the host in a stream must not call CUDA.
/// - A kernel that was not loaded before its launch fails: CUDA would load it then, and may wait for all streams first,
///   also for those that stand at a gate.
namespace shardrun::test::fake_cuda {

/// How the fake behaves. In a program: from variables of the environment, FAKE_CUDA_ and the name in capitals.
struct Settings {
  std::uint64_t seed = 1;
  int gpus = 2;
  std::uint64_t memory = std::uint64_t{1} << 30U;  ///< bytes of each
  int capability = 90;
  int driver = 13000;        ///< the version of CUDA that it supports; 0: there is none
  std::int64_t fail_at = 0;  ///< the number of the work that fails, from 1; 0: none
  int failure = 700;         ///< cudaError_t of it
  double clock = 1;          ///< by how much the GPU's is faster than the host's
  int virtual_memory = 1;    ///< 0: GPUs have none
  std::int64_t forget = 0;   ///< from 1: the wait for an event that is left out; 0: none; -1: all
};

/// Sets the settings and forgets failures. REQUIRES: no memory and no streams.
void set(const Settings& settings);

/// Adds a kernel to a stream.
void enqueue(void* stream, const void* kernel, std::function<void()> work);

/// Allocations, streams and events that are not freed.
[[nodiscard]] std::int64_t held();
/// Waits for events so far.
[[nodiscard]] std::int64_t waits();

// For the driver's virtual memory (fake_virtual_memory.cpp).

/// A function of the driver by name, or null.
[[nodiscard]] void* virtual_memory_function(std::string_view name);
[[nodiscard]] bool has_virtual_memory();
/// Takes bytes of a GPU that has them, or gives back.
[[nodiscard]] bool take_memory(std::int64_t bytes);
/// Makes reserved addresses memory of the GPU, and ends that.
void map_memory(void* address, std::size_t bytes);
void unmap_memory(void* address);

/// What the host has asked of CUDA so far.
struct Counts {
  std::int64_t made = 0;    ///< allocations, streams and events
  std::int64_t given = 0;   ///< works of streams
  std::int64_t kernels = 0;  ///< of them
  std::int64_t stands = 0;  ///< waits of the host for work that was not done
  std::int64_t behind = 0;  ///< works given behind what it waited for, in that stream; the sum over these waits
};
[[nodiscard]] Counts counts();

}  // namespace shardrun::test::fake_cuda
