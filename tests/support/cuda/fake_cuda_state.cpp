#include "tests/support/cuda/fake_cuda_state.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

namespace shardrun::test::fake_cuda {
namespace {

/// While an object exists, allocations count again: host functions do not belong to the fake.
struct Counted {
  Counted() noexcept { --Uncounted::depth(); }
  ~Counted() { ++Uncounted::depth(); }
};

thread_local bool is_on_host_function = false;

Settings settings_of_environment() {
  Settings settings;
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
  read("FAKE_CUDA_STREAM_VALUES", settings.stream_values);
  read("FAKE_CUDA_FORGET", settings.forget);
  return settings;
}

bool is_past(const Work& work) {
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

}  // namespace

Fake::Fake() : settings(settings_of_environment()), random(settings.seed) {}
Fake::~Fake() {
  {
    const std::lock_guard lock(mutex);
    ends_ = true;
  }
  changed.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Fake::give(FakeStream* stream, Work work) {
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

void Fake::nudge() {
  ++nudges_;
  changed.notify_all();
}

cudaError_t Fake::await(std::unique_lock<std::mutex>& lock, FakeStream* stream, std::uint64_t position) {
  if (stream->done < position) {
    ++counts.stands;
    counts.behind += static_cast<std::int64_t>(stream->given - position);
  }
  ++waiting_;
  changed.notify_all();
  // After a failure, do not wait for a host function that is still running.
  changed.wait(lock, [&] { return stream->done >= position || (is_calling_ && sticky != cudaSuccess); });
  --waiting_;
  return sticky;
}

void Fake::protect(int access) const {
  for (const auto& [begin, size] : device) {
    mprotect(const_cast<std::byte*>(begin), rounded(size), access);
  }
}

FakeStream* Fake::any_ready() {
  std::vector<FakeStream*> ready;
  std::ranges::copy_if(streams, std::back_inserter(ready),
                       [](const FakeStream* stream) { return !stream->work.empty() && is_past(stream->work.front()); });
  return ready.empty() ? nullptr : ready[random() % ready.size()];
}

/// Drops all work after a failure, and ends all waits for it, as CUDA does.
void Fake::drop_all() {
  for (FakeStream* const stream : streams) {
    stream->done += stream->work.size();
    stream->work.clear();
  }
  joint_ = 0;
}

void Fake::run() {
  const Uncounted own;
  std::unique_lock lock(mutex);
  while (!ends_) {
    if (sticky != cudaSuccess) {
      drop_all();
      changed.notify_all();
    }
    const bool is_asked = waiting_ > 0 || nudges_ > 0;
    if (!is_asked && joint_ > 0 && random() % 8 == 0) {  // other ranks wait for joint work, so it starts by itself
      changed.wait_for(lock, std::chrono::microseconds(random() % 200));
    }
    FakeStream* const stream = is_asked || joint_ > 0 ? any_ready() : nullptr;
    nudges_ -= nudges_ > 0 ? 1 : 0;
    if (stream == nullptr) {
      // Nothing notifies the thread when a gate's word changes, so it polls them, as a GPU does.
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

/// Performs a work, and returns whether it is complete.
bool Fake::perform(const Work& work, std::unique_lock<std::mutex>& lock) {
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

Fake& state() {
  static Fake only;
  return only;
}

void refuse_in_host_function() {
  if (is_on_host_function) {
    std::fprintf(stderr, "fake CUDA: a function of the host in a stream calls CUDA\n");
    std::abort();
  }
}

}  // namespace shardrun::test::fake_cuda
