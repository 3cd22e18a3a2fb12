#include "tests/support/cuda/fake_cuda.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/allocations.h"

namespace fake = shardrun::test::fake_cuda;

namespace {

struct Work {
  std::function<void()> run = {};
  std::shared_ptr<fake::JointWork> joint = {};
  FakeStream* after = nullptr;  ///< whose work up to `position` must be done
  std::uint64_t position = 0;
  const std::uint32_t* gate = nullptr;  ///< a word that must be at least `least`
  std::uint32_t least = 0;
  bool is_on_host = false;
};

}  // namespace

struct FakeStream {
  int device = 0;
  int priority = 0;
  std::deque<Work> work;
  std::uint64_t given = 0;
  std::uint64_t done = 0;
};

struct FakeEvent {
  FakeStream* stream = nullptr;  ///< null: not recorded
  std::uint64_t position = 0;
  std::chrono::steady_clock::time_point time;
};

namespace {

/// Functions of the host are not the fake's.
struct Counted {
  Counted() noexcept { --shardrun::test::Uncounted::depth(); }
  ~Counted() { ++shardrun::test::Uncounted::depth(); }
};

constexpr std::size_t page = 4096;
thread_local bool is_on_host_function = false;
thread_local int current_device = fake::no_device;

std::size_t rounded(std::size_t bytes) { return (bytes + page - 1) / page * page; }

fake::Settings settings_of_environment() {
  fake::Settings settings;
  const auto read = [](const char* name, auto& value) {
    if (const char* const text = std::getenv(name); text != nullptr) {
      value = static_cast<std::remove_reference_t<decltype(value)>>(std::strtoll(text, nullptr, 10));
    }
  };
  read("FAKE_CUDA_SEED", settings.seed);
  read("FAKE_CUDA_GPUS", settings.gpus);
  read("FAKE_CUDA_MEMORY", settings.memory);
  read("FAKE_CUDA_CAPABILITY", settings.capability);
  read("FAKE_CUDA_DRIVER", settings.driver);
  read("FAKE_CUDA_FAIL_AT", settings.fail_at);
  read("FAKE_CUDA_FAILURE", settings.failure);
  read("FAKE_CUDA_VIRTUAL_MEMORY", settings.virtual_memory);
  read("FAKE_CUDA_FORGET", settings.forget);
  return settings;
}

/// All that the fake knows. Every function of CUDA locks it.
class Fake {
 public:
  Fake() : settings(settings_of_environment()), random(settings.seed) {}
  ~Fake() {
    {
      const std::lock_guard lock(mutex);
      ends_ = true;
    }
    changed.notify_all();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  [[nodiscard]] static bool is_past(const Work& work) {
    if (work.joint != nullptr) {
      return work.joint->can_go_on();
    }
    if (work.after != nullptr && work.after->done < work.position) {
      return false;
    }
    if (work.gate == nullptr) {
      return true;
    }
    const std::uint32_t word = std::atomic_ref(*const_cast<std::uint32_t*>(work.gate)).load(std::memory_order_acquire);
    return static_cast<std::int32_t>(word - work.least) >= 0;
  }

  void give(FakeStream* stream, Work work) {
    joint_ += work.joint != nullptr ? 1 : 0;
    stream->work.push_back(std::move(work));
    ++stream->given;
    ++counts.given;
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { run(); });
    }
    if (joint_ > 0) {
      changed.notify_all();
    }
  }

  /// Someone polls: any one work may be done.
  void nudge() {
    ++nudges_;
    changed.notify_all();
  }

  /// Waits until the stream has done its work up to there.
  cudaError_t await(std::unique_lock<std::mutex>& lock, FakeStream* stream, std::uint64_t position) {
    if (stream->done < position) {
      ++counts.stands;
      counts.behind += static_cast<std::int64_t>(stream->given - position);
    }
    ++waiting_;
    changed.notify_all();
    // After a failure nobody waits for a function of the host that still runs.
    changed.wait(lock, [&] { return stream->done >= position || (is_calling_ && sticky != cudaSuccess); });
    --waiting_;
    return sticky;
  }

  /// The allocation that holds these bytes.
  [[nodiscard]] bool is_on_gpu(const void* memory, std::size_t bytes) const { return holds(device, memory, bytes); }
  [[nodiscard]] bool is_pinned(const void* memory, std::size_t bytes) const { return holds(pinned, memory, bytes); }
  [[nodiscard]] std::uint64_t used() const {
    std::uint64_t bytes = taken;
    for (const auto& [begin, size] : device) {
      bytes += mapped.contains(begin) ? 0 : size;
    }
    return bytes;
  }

  std::mutex mutex;
  std::condition_variable changed;
  fake::Settings settings;
  std::mt19937_64 random;
  std::map<const std::byte*, std::size_t> device;  ///< not freed
  std::map<const std::byte*, std::size_t> pinned;
  std::set<const std::byte*> mapped;  ///< of `device`, virtual memory
  std::uint64_t taken = 0;            ///< bytes of virtual memory
  std::set<const void*> kernels;      ///< loaded
  std::vector<FakeStream*> streams;
  // Destroyed; others may still ask how far they were.
  std::vector<std::unique_ptr<FakeStream>> old_streams;
  std::vector<std::unique_ptr<FakeEvent>> old_events;
  std::int64_t events = 0;
  std::int64_t waits = 0;
  fake::Counts counts;
  std::int64_t done = 0;  ///< works
  cudaError_t sticky = cudaSuccess;
  std::function<void()> before_host_function;

 private:
  [[nodiscard]] static bool holds(const std::map<const std::byte*, std::size_t>& ranges, const void* memory,
                                  std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(memory);
    const auto after = ranges.upper_bound(first);
    return after != ranges.begin() && first + bytes <= std::prev(after)->first + std::prev(after)->second;
  }

  void protect(int access) const {
    for (const auto& [begin, size] : device) {
      mprotect(const_cast<std::byte*>(begin), rounded(size), access);
    }
  }

  FakeStream* any_ready() {
    std::vector<FakeStream*> ready;
    std::ranges::copy_if(streams, std::back_inserter(ready), [](const FakeStream* stream) {
      return !stream->work.empty() && is_past(stream->work.front());
    });
    return ready.empty() ? nullptr : ready[random() % ready.size()];
  }

  /// After a failure nothing is done any more, as with CUDA, and nobody waits.
  void drop_all() {
    for (FakeStream* const stream : streams) {
      stream->done += stream->work.size();
      stream->work.clear();
    }
    joint_ = 0;
  }

  void run() {
    const shardrun::test::Uncounted own;
    std::unique_lock lock(mutex);
    while (!ends_) {
      if (sticky != cudaSuccess) {
        drop_all();
        changed.notify_all();
      }
      const bool is_asked = waiting_ > 0 || nudges_ > 0;
      if (!is_asked && joint_ > 0 && random() % 8 == 0) {  // others wait for it: it comes by itself, some time
        changed.wait_for(lock, std::chrono::microseconds(random() % 200));
      }
      FakeStream* const stream = is_asked || joint_ > 0 ? any_ready() : nullptr;
      nudges_ -= nudges_ > 0 ? 1 : 0;
      if (stream == nullptr) {
        // Gates are words that nobody tells of: a GPU polls them as well.
        waiting_ > 0 || joint_ > 0 ? static_cast<void>(changed.wait_for(lock, std::chrono::microseconds(50)))
        : nudges_ > 0              ? static_cast<void>(0)
                                   : changed.wait(lock);
        continue;
      }
      const Work work = stream->work.front();
      bool is_done = true;
      if (work.joint == nullptr && ++done == settings.fail_at) {
        sticky = static_cast<cudaError_t>(settings.failure);
      } else if (work.joint != nullptr || work.run) {
        is_done = perform(work, lock);
      }
      if (!is_done) {
        continue;
      }
      joint_ -= work.joint != nullptr ? 1 : 0;
      stream->work.pop_front();
      ++stream->done;
      changed.notify_all();
    }
  }

  /// Whether the work is done.
  bool perform(const Work& work, std::unique_lock<std::mutex>& lock) {
    if (work.is_on_host) {
      is_calling_ = true;
      const std::function<void()> before = before_host_function;
      lock.unlock();
      is_on_host_function = true;
      if (before) {
        before();
      }
      {
        const Counted again;
        work.run();
      }
      is_on_host_function = false;
      lock.lock();
      is_calling_ = false;
      return true;
    }
    protect(PROT_READ | PROT_WRITE);
    lock.unlock();
    cudaError_t result = cudaSuccess;
    bool is_done = true;
    try {
      work.joint != nullptr ? static_cast<void>(is_done = work.joint->go_on()) : work.run();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "fake CUDA: a kernel failed: %s\n", error.what());
      result = cudaErrorLaunchFailure;
    }
    lock.lock();
    sticky = sticky == cudaSuccess ? result : sticky;
    protect(PROT_NONE);
    return is_done;
  }

  int waiting_ = 0;
  int nudges_ = 0;
  int joint_ = 0;  ///< works that ranks do together, in streams
  bool ends_ = false;
  bool is_calling_ = false;  ///< a function of the host
  std::thread thread_;
};

Fake& state() {
  static Fake only;
  return only;
}

/// Does `act(fake, lock)` unless CUDA has failed before.
template <typename Act>
cudaError_t with(const Act& act) {
  if (is_on_host_function) {
    std::fprintf(stderr, "fake CUDA: a function of the host in a stream calls CUDA\n");
    std::abort();
  }
  const shardrun::test::Uncounted own;
  Fake& fake = state();
  std::unique_lock lock(fake.mutex);
  return fake.sticky != cudaSuccess ? fake.sticky : act(fake, lock);
}

int wait_value(cudaStream_t stream, unsigned long long word, unsigned value, unsigned flags) {
  return with([&](Fake& fake, auto&) {
    const auto* const gate = reinterpret_cast<const std::uint32_t*>(static_cast<std::uintptr_t>(word));
    if (flags != 0 || !fake.is_pinned(gate, sizeof(*gate))) {
      return cudaErrorInvalidValue;
    }
    fake.give(stream, {.gate = gate, .least = value});
    return cudaSuccess;
  });
}

int write_value(cudaStream_t stream, unsigned long long word, unsigned value, unsigned flags) {
  return with([&](Fake& fake, auto&) {
    auto* const to = reinterpret_cast<std::uint32_t*>(static_cast<std::uintptr_t>(word));
    if (flags != 0 || !fake.is_pinned(to, sizeof(*to))) {
      return cudaErrorInvalidValue;
    }
    fake.give(stream, {.run = [to, value] { std::atomic_ref(*to).store(value, std::memory_order_release); }});
    return cudaSuccess;
  });
}

struct Text {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr Text texts[] = {
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

const Text* text_of(cudaError_t error) {
  const auto* const found = std::ranges::find(texts, error, &Text::error);
  return found == std::end(texts) ? nullptr : found;
}

}  // namespace

namespace shardrun::test::fake_cuda {

void set(const Settings& settings) {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  fake.settings = settings;
  fake.random.seed(settings.seed);
  fake.sticky = cudaSuccess;
  fake.done = 0;
  fake.waits = 0;
  fake.counts = {};
}

void set_gpus(int count) {
  const std::lock_guard lock(state().mutex);
  state().settings.gpus = count;
}

void set_error(int error) {
  const std::lock_guard lock(state().mutex);
  state().sticky = static_cast<cudaError_t>(error);
  state().changed.notify_all();
}

void set_before_host_function(std::function<void()> act) {
  const std::lock_guard lock(state().mutex);
  state().before_host_function = std::move(act);
}

void forget(std::int64_t number) {
  const std::lock_guard lock(state().mutex);
  state().settings.forget = number;
}

void enqueue(void* stream, const void* kernel, std::function<void()> work) {
  static_cast<void>(with([&](Fake& fake, auto&) {
    if (!fake.kernels.contains(kernel)) {
      std::fprintf(stderr, "fake CUDA: a kernel is launched that was not loaded\n");
      return fake.sticky = cudaErrorLaunchFailure;
    }
    ++fake.counts.kernels;
    fake.give(static_cast<FakeStream*>(stream), {.run = std::move(work)});
    return cudaSuccess;
  }));
}

void enqueue(void* stream, std::shared_ptr<JointWork> work) {
  static_cast<void>(with([&](Fake& fake, auto&) {
    fake.give(static_cast<FakeStream*>(stream), {.joint = std::move(work)});
    return cudaSuccess;
  }));
}

void enqueue(void* stream, std::function<void()> work) {
  static_cast<void>(with([&](Fake& fake, auto&) {
    fake.give(static_cast<FakeStream*>(stream), {.run = std::move(work)});
    return cudaSuccess;
  }));
}

bool is_done(const void* stream) {
  const std::lock_guard lock(state().mutex);
  return static_cast<const FakeStream*>(stream)->work.empty();
}
void await(void* stream) {
  std::unique_lock lock(state().mutex);
  auto* const own = static_cast<FakeStream*>(stream);
  (void)state().await(lock, own, own->given);
}
void nudge() {
  const std::lock_guard lock(state().mutex);
  state().nudge();
}

int device() { return current_device; }
void set_device(int number) { current_device = number; }
int device_of(const void* stream) { return static_cast<const FakeStream*>(stream)->device; }
bool is_on_gpu(const void* memory, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  return state().is_on_gpu(memory, bytes);
}
std::uint64_t random() {
  const std::lock_guard lock(state().mutex);
  return state().random();
}

std::int64_t held() {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  return static_cast<std::int64_t>(fake.device.size() + fake.pinned.size() + fake.streams.size()) + fake.events;
}

std::vector<int> priorities() {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  std::vector<int> all;
  std::ranges::transform(fake.streams, std::back_inserter(all), &FakeStream::priority);
  return all;
}

std::int64_t waits() {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  return fake.waits;
}

int virtual_memory() {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  return fake.settings.virtual_memory;
}

bool take_memory(std::int64_t bytes) {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  if (bytes > 0 && fake.used() + static_cast<std::uint64_t>(bytes) > fake.settings.memory) {
    return false;
  }
  fake.taken += static_cast<std::uint64_t>(bytes);
  ++fake.counts.made;
  return true;
}

void map_memory(void* address, std::size_t bytes) {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  fake.device[static_cast<const std::byte*>(address)] = bytes;
  fake.mapped.insert(static_cast<const std::byte*>(address));
}

void unmap_memory(void* address) {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  fake.device.erase(static_cast<const std::byte*>(address));
  fake.mapped.erase(static_cast<const std::byte*>(address));
}

Counts counts() {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  return fake.counts;
}

}  // namespace shardrun::test::fake_cuda

const char* cudaGetErrorName(cudaError_t error) {
  const Text* const found = text_of(error);
  return found == nullptr ? "an error that the fake does not know" : found->name;
}
const char* cudaGetErrorString(cudaError_t error) {
  const Text* const found = text_of(error);
  return found == nullptr ? "an error that the fake does not know" : found->text;
}
cudaError_t cudaGetLastError() {
  return with([](Fake&, auto&) { return cudaSuccess; });
}
cudaError_t cudaDriverGetVersion(int* version) {
  return with([&](const Fake& fake, auto&) {
    *version = fake.settings.driver;
    return cudaSuccess;
  });
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  return with([&](const Fake& fake, auto&) {
    *count = fake.settings.gpus;
    return fake.settings.driver < 13000 ? cudaErrorInsufficientDriver : *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int number) {
  return with([&](const Fake& fake, auto&) {
    if (number < 0 || number >= fake.settings.gpus) {
      return cudaErrorInvalidDevice;
    }
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "Fake H200");
    properties->totalGlobalMem = fake.settings.memory;
    properties->major = fake.settings.capability / 10;
    properties->minor = fake.settings.capability % 10;
    return cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int number) {
  return with([&](const Fake& fake, auto&) {
    if (number < 0 || number >= fake.settings.gpus) {
      return cudaErrorInvalidDevice;
    }
    current_device = number;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const std::string_view asked = name;
  *function = asked == "cuStreamWaitValue32"    ? reinterpret_cast<void*>(&wait_value)
              : asked == "cuStreamWriteValue32" ? reinterpret_cast<void*>(&write_value)
                                                : fake::virtual_memory_function(asked);
  *found = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  return with([&](Fake& fake, auto&) {
    fake.kernels.insert(kernel);
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return with([&](const Fake& fake, auto&) {
    *total = fake.settings.memory;
    *free = fake.settings.memory - std::min(fake.used(), fake.settings.memory);
    return cudaSuccess;
  });
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return with([&](Fake& fake, auto&) {
    if (fake.used() + bytes > fake.settings.memory) {
      return cudaErrorMemoryAllocation;
    }
    // A page behind it is never mapped. Freed addresses are not used again.
    void* const range =
        mmap(nullptr, rounded(bytes) + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
      return cudaErrorMemoryAllocation;
    }
    fake.device[static_cast<const std::byte*>(range)] = bytes;
    ++fake.counts.made;
    *memory = range;
    return cudaSuccess;
  });
}
cudaError_t cudaFree(void* memory) {
  for (const bool is_first : {true, false}) {
    std::vector<FakeStream*> streams;
    {
      const std::lock_guard lock(state().mutex);
      streams = state().streams;
      if (!is_first && memory != nullptr) {
        const auto found = state().device.find(static_cast<const std::byte*>(memory));
        if (found == state().device.end()) {
          return cudaErrorInvalidValue;
        }
        mmap(memory, rounded(found->second), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        state().device.erase(found);
      }
    }
    for (FakeStream* const stream : streams) {
      if (is_first && stream->device == std::max(current_device, 0)) {
        static_cast<void>(cudaStreamSynchronize(stream));
      }
    }
  }
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return with([&](Fake& fake, auto&) {
    *memory = std::aligned_alloc(page, rounded(bytes));
    fake.pinned[static_cast<const std::byte*>(*memory)] = bytes;
    ++fake.counts.made;
    return cudaSuccess;
  });
}
cudaError_t cudaFreeHost(void* memory) {
  const std::lock_guard lock(state().mutex);
  const bool was_there = state().pinned.erase(static_cast<const std::byte*>(memory)) == 1;
  std::free(memory);
  return was_there ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  return with([&](Fake& fake, auto&) {
    ++fake.counts.made;
    const bool is_new = fake.pinned.emplace(static_cast<const std::byte*>(memory), bytes).second;
    return is_new ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
  });
}
cudaError_t cudaHostUnregister(void* memory) {
  const std::lock_guard lock(state().mutex);
  return state().pinned.erase(static_cast<const std::byte*>(memory)) == 1 ? cudaSuccess
                                                                          : cudaErrorHostMemoryNotRegistered;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return with([&](Fake& fake, auto&) {
    const void* const on_gpu = kind == cudaMemcpyHostToDevice ? to : from;
    const void* const on_host = kind == cudaMemcpyHostToDevice ? from : to;
    if (!fake.is_on_gpu(on_gpu, bytes) || !fake.is_pinned(on_host, bytes)) {
      return cudaErrorInvalidValue;
    }
    fake.give(stream, {.run = [=] { std::memcpy(to, from, bytes); }});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return with([&](Fake& fake, auto&) {
    fake.streams.push_back(new FakeStream{.device = std::max(current_device, 0)});
    ++fake.counts.made;
    *stream = fake.streams.back();
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return with([&](Fake&, auto&) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  const cudaError_t result = cudaStreamCreateWithFlags(stream, flags);
  if (result == cudaSuccess) {
    (*stream)->priority = priority;
  }
  return result;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  static_cast<void>(cudaStreamSynchronize(stream));
  const std::lock_guard lock(state().mutex);
  std::erase(state().streams, stream);
  state().old_streams.emplace_back(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return with([&](const Fake&, auto&) { return stream->work.empty() ? cudaSuccess : cudaErrorNotReady; });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return with([&](Fake& fake, auto& lock) { return fake.await(lock, stream, stream->given); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return with([&](Fake& fake, auto&) {
    ++fake.waits;
    const std::int64_t forgotten = fake.settings.forget;
    if (event->stream != nullptr && forgotten != -1 && forgotten != fake.waits) {
      fake.give(stream, {.after = event->stream, .position = event->position});
    }
    return cudaSuccess;
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return with([&](Fake& fake, auto&) {
    fake.give(stream, {.run = [=] { function(argument); }, .is_on_host = true});
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return with([&](Fake& fake, auto&) {
    *event = new FakeEvent;
    ++fake.events;
    ++fake.counts.made;
    return cudaSuccess;
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(state().mutex);
  --state().events;
  state().old_events.emplace_back(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return with([&](Fake& fake, auto&) {
    fake.give(stream, {.run = [event] { event->time = std::chrono::steady_clock::now(); }});
    event->stream = stream;
    event->position = stream->given;
    return cudaSuccess;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return with([&](const Fake&, auto&) {
    return event->stream == nullptr || event->stream->done >= event->position ? cudaSuccess : cudaErrorNotReady;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return with([&](Fake& fake, auto& lock) {
    return event->stream == nullptr ? cudaSuccess : fake.await(lock, event->stream, event->position);
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return with([&](const Fake& fake, auto&) {
    if (begin->stream == nullptr || end->stream == nullptr || begin->stream->done < begin->position ||
        end->stream->done < end->position) {
      return cudaErrorNotReady;
    }
    *milliseconds = static_cast<float>(std::chrono::duration<double, std::milli>(end->time - begin->time).count() *
                                       fake.settings.clock);
    return cudaSuccess;
  });
}
