#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// A fake of CUDA that needs no GPU, for tests. It has the runtime functions that the device `cuda` calls
/// (fake_devices.cpp, fake_memory.cpp, fake_streams.cpp, fake_graphs.cpp), the driver functions that transports/nccl
/// calls (fake_driver.cpp), and NCCL (fake_nccl.cpp). They share streams, events and memory (fake_cuda_state.h). All
/// except NCCL are one library, libcuda.so.1, so a process has it only once.
///
/// - Memory of the GPU is accessible only while work uses it. Any other access raises SIGSEGV, as does work that
///   accesses freed memory or memory past the end.
/// - Streams do nothing until the host waits or polls, or until one of them has work that several ranks do together.
///   Then one thread does the work for which the host waits, and some other work: it repeatedly picks a random stream
///   whose next work is ready. So a missing event causes wrong numbers.
/// - A copy is refused unless it is inside of one allocation and its host memory is pinned.
/// - Host functions in a stream must not call CUDA.
/// - A kernel fails if it was not loaded before its launch. CUDA would load it at the launch, and might first wait for
///   all streams, even for those that wait at a gate.
namespace shardrun::test::fake_cuda {

/// How the fake behaves. A program reads the settings from environment variables: FAKE_CUDA_ and the name in capitals.
struct Settings {
  std::uint64_t seed = 1;
  int gpus = 2;
  std::uint64_t memory = std::uint64_t{1} << 30U;  ///< bytes of each GPU
  int capability = 90;
  int driver = 13000;        ///< the version of CUDA that the driver supports; 0: there is no driver
  std::int64_t fail_at = 0;  ///< the number, from 1, of the work that fails; 0: none
  int failure = 700;         ///< the cudaError_t with which it fails
  double clock = 1;          ///< the speed of the GPU's clock relative to the host's
  int virtual_memory = 1;    ///< 0: GPUs have none; 2: refused for network cards; 3: always refused
  int stream_values = 1;     ///< 0: the driver has no waits for and writes of words; 2: it refuses them
  std::int64_t forget = 0;   ///< the number, from 1, of the wait for an event that is skipped; 0: none; -1: all
};

/// Sets the settings and resets failures. REQUIRES: there are no allocations and no streams.
void set(const Settings& settings);

/// Sets the number of GPUs.
void set_gpus(int count);
/// Makes all streams fail with this cudaError_t; 0: resets the failure.
void set_error(int error);
/// Sets a function that is called before each host function in a stream, on its thread.
void set_before_host_function(std::function<void()> act);
/// Sets Settings::forget.
void forget(std::int64_t number);

/// Adds a kernel to a stream.
void enqueue(void* stream, const void* kernel, std::function<void()> work);

/// Work that several ranks do together. It may stay at the head of its stream for long,
/// and does not delay other streams.
class JointWork {
 public:
  JointWork() = default;
  JointWork(const JointWork&) = delete;
  JointWork& operator=(const JointWork&) = delete;
  virtual ~JointWork() = default;

  /// Whether go_on() would make progress. Must not access memory of the GPU.
  [[nodiscard]] virtual bool can_go_on() = 0;
  /// Does as much as is possible now. Returns whether all is done.
  virtual bool go_on() = 0;
};
void enqueue(void* stream, std::shared_ptr<JointWork> work);
/// Adds other work that uses memory of the GPU.
void enqueue(void* stream, std::function<void()> work);
/// Whether a stream has done all work that it was given.
[[nodiscard]] bool is_done(const void* stream);
/// Waits until is_done().
void await(void* stream);
/// Tells the fake that someone polls, so it may do one work.
void nudge();

/// The GPU that is current in this thread, for both the runtime and the driver.
inline constexpr int no_device = -1;
[[nodiscard]] int device();
void set_device(int number);
[[nodiscard]] int device_of(const void* stream);
/// Whether these bytes are inside of one allocation of a GPU.
[[nodiscard]] bool is_on_gpu(const void* memory, std::size_t bytes);
/// Whether the driver's cuMemAlloc has allocated the memory.
[[nodiscard]] bool is_of_driver(const void* memory);
[[nodiscard]] std::uint64_t random();

/// The number of allocations, streams and events that are not freed.
[[nodiscard]] std::int64_t held();
/// Priorities of the existing streams, in the order in which they were created.
[[nodiscard]] std::vector<int> priorities();
/// The number of waits for events so far.
[[nodiscard]] std::int64_t waits();

// Functions for the fake of the driver's virtual memory (fake_virtual_memory.cpp).

/// The driver function of this name; null if there is none.
[[nodiscard]] void* virtual_memory_function(std::string_view name);
/// Returns Settings::virtual_memory.
[[nodiscard]] int virtual_memory();
/// Takes bytes of a GPU's memory; a negative number gives them back. Returns false if the GPU has not enough.
[[nodiscard]] bool take_memory(std::int64_t bytes);
/// map_memory() makes reserved addresses memory of the GPU; unmap_memory() ends that.
void map_memory(void* address, std::size_t bytes);
void unmap_memory(void* address);

/// What the host has requested of CUDA so far.
struct Counts {
  std::int64_t made = 0;     ///< allocations, streams and events created
  std::int64_t given = 0;    ///< works given to streams
  std::int64_t kernels = 0;  ///< kernels among them
  std::int64_t stands = 0;   ///< waits of the host for work that was not done yet
  std::int64_t behind = 0;   ///< over these waits, works that were queued in that stream after the awaited one
};
[[nodiscard]] Counts counts();

}  // namespace shardrun::test::fake_cuda
