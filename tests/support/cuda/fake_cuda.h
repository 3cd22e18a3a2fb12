#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// CUDA without a GPU, for tests: the runtime that the device `cuda` uses (fake_devices.cpp, fake_memory.cpp,
/// fake_streams.cpp, fake_graphs.cpp), the driver that transports/nccl uses (fake_driver.cpp) and NCCL (fake_nccl.cpp)
/// act on the same streams, events and memory (fake_cuda_state.h). All but NCCL are one library, libcuda.so.1: whoever
/// opens it by name in a process that has it gets the same.
///
/// - Memory of the GPU is mapped only while work uses it: whoever else touches it gets SIGSEGV, and so does work that
///   touches freed memory or memory behind the end.
/// - Streams do nothing until the host waits or polls, or until one of them has work that other ranks take part in.
///   Then one thread does what the wait needs, and as much of the rest as chance wants: each time it takes any stream
///   whose next work may be done. A missing event shows as wrong numbers.
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
  int virtual_memory = 1;    ///< 0: GPUs have none; 2: it is refused for network cards; 3: it is always refused
  int stream_values = 1;     ///< 0: the driver has no waits for words and no writes of them; 2: it refuses them
  std::int64_t forget = 0;   ///< from 1: the wait for an event that is left out; 0: none; -1: all
};

/// Sets the settings and forgets failures. REQUIRES: no memory and no streams.
void set(const Settings& settings);

/// How many there are from now on.
void set_gpus(int count);
/// The cudaError_t with which all streams have ended; 0: they have not.
void set_error(int error);
/// Called before each function of the host in a stream, on its thread.
void set_before_host_function(std::function<void()> act);
/// Settings::forget from now on.
void forget(std::int64_t number);

/// Adds a kernel to a stream.
void enqueue(void* stream, const void* kernel, std::function<void()> work);

/// Work that ranks do together. It may stand at the head of its stream for long, and does not hold up other streams.
class JointWork {
 public:
  JointWork() = default;
  JointWork(const JointWork&) = delete;
  JointWork& operator=(const JointWork&) = delete;
  virtual ~JointWork() = default;

  /// Whether `go_on` would do something. Touches no memory of the GPU.
  [[nodiscard]] virtual bool can_go_on() = 0;
  /// Does as much as it can. Whether all is done.
  virtual bool go_on() = 0;
};
void enqueue(void* stream, std::shared_ptr<JointWork> work);
/// Adds any other work that uses memory of the GPU.
void enqueue(void* stream, std::function<void()> work);
/// Whether a stream has done all that it was given.
[[nodiscard]] bool is_done(const void* stream);
/// Waits until then.
void await(void* stream);
/// Someone polls: the fake may do one work.
void nudge();

/// The GPU that is current in this thread, as CUDA's runtime and driver see it.
inline constexpr int no_device = -1;
[[nodiscard]] int device();
void set_device(int number);
[[nodiscard]] int device_of(const void* stream);
/// Whether one allocation of a GPU holds these bytes.
[[nodiscard]] bool is_on_gpu(const void* memory, std::size_t bytes);
/// Whether it is of the driver's cuMemAlloc.
[[nodiscard]] bool is_of_driver(const void* memory);
[[nodiscard]] std::uint64_t random();

/// Allocations, streams and events that are not freed.
[[nodiscard]] std::int64_t held();
/// Priorities of the streams that there are, in the order in which they were made.
[[nodiscard]] std::vector<int> priorities();
/// Waits for events so far.
[[nodiscard]] std::int64_t waits();

// For the driver's virtual memory (fake_virtual_memory.cpp).

/// A function of the driver by name, or null.
[[nodiscard]] void* virtual_memory_function(std::string_view name);
/// Settings::virtual_memory.
[[nodiscard]] int virtual_memory();
/// Takes bytes of a GPU that has them, or gives back.
[[nodiscard]] bool take_memory(std::int64_t bytes);
/// Makes reserved addresses memory of the GPU, and ends that.
void map_memory(void* address, std::size_t bytes);
void unmap_memory(void* address);

/// What the host has asked of CUDA so far.
struct Counts {
  std::int64_t made = 0;     ///< allocations, streams and events
  std::int64_t given = 0;    ///< works of streams
  std::int64_t kernels = 0;  ///< of them
  std::int64_t stands = 0;   ///< waits of the host for work that was not done
  std::int64_t behind = 0;   ///< works given behind what it waited for, in that stream; the sum over these waits
};
[[nodiscard]] Counts counts();

}  // namespace shardrun::test::fake_cuda
