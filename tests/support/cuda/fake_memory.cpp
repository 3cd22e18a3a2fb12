// Memory and copies of the fake CUDA runtime.

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/support/cuda/fake_cuda_state.h"

namespace fake = shardrun::test::fake_cuda;
using fake::Fake;
using fake::page;
using fake::rounded;
using fake::state;
using fake::with;

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
    // The page after an allocation is never mapped. Addresses of freed memory are not used again.
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
      if (is_first && stream->device == std::max(fake::device(), 0)) {
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
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return with([&](Fake& fake, auto&) {
    if (!fake.is_on_gpu(to, bytes)) {
      return cudaErrorInvalidValue;
    }
    fake.give(stream, {.run = [=] { std::memset(to, value, bytes); }});
    return cudaSuccess;
  });
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
