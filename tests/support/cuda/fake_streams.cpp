// Streams and events of the fake CUDA runtime, and the driver functions for gates.

#include <algorithm>
#include <atomic>
#include <string_view>

#include "tests/support/cuda/fake_cuda_state.h"

namespace fake = shardrun::test::fake_cuda;
using fake::Fake;
using fake::state;
using fake::with;

namespace {

int wait_value(cudaStream_t stream, unsigned long long word, unsigned value, unsigned flags) {
  return with([&](Fake& fake, auto&) {
    const auto* const gate = reinterpret_cast<const std::uint32_t*>(static_cast<std::uintptr_t>(word));
    if (fake.settings.stream_values == 2) {
      return cudaErrorNotPermitted;
    }
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
    if (fake.settings.stream_values == 2) {
      return cudaErrorNotPermitted;
    }
    if (flags != 0 || !fake.is_pinned(to, sizeof(*to))) {
      return cudaErrorInvalidValue;
    }
    fake.give(stream, {.run = [to, value] { std::atomic_ref(*to).store(value, std::memory_order_release); }});
    return cudaSuccess;
  });
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const std::string_view asked = name;
  if (asked.starts_with("cuStream")) {
    const std::lock_guard lock(state().mutex);
    if (state().settings.stream_values == 0) {
      *found = cudaDriverEntryPointSymbolNotFound;
      return cudaSuccess;
    }
  }
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

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return with([&](Fake& fake, auto&) {
    fake.streams.push_back(new FakeStream{.device = std::max(fake::device(), 0)});
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
