#include "plugins/loader/transport_queue.h"

#include <exception>

#include "plugins/loader/call.h"

namespace shardrun::plugins {
namespace {

TransportQueue& queue_of(void* self) noexcept { return *static_cast<TransportQueue*>(self); }

template <class Act>
std::int32_t serve_queue(sr_error* error, Act act) noexcept {
  try {
    act();
    return SR_OK;
  } catch (const std::exception& failure) {
    sdk::detail::write_error(error, failure.what());
    return SR_INTERNAL;
  }
}

std::int32_t call_in_queue(void* self, void (*run)(void* argument), void* argument, sr_error* error) {
  return serve_queue(error, [&] { queue_of(self).call(run, argument); });
}

std::int32_t add_gate_to_queue(void* self, std::uint64_t* gate, sr_error* error) {
  return serve_queue(error, [&] { *gate = queue_of(self).add_gate(); });
}

void open_gate_of_queue(void* self, std::uint64_t gate) { queue_of(self).open_gate(gate); }

}  // namespace

TransportQueue::TransportQueue(std::uint32_t kind, void* native, std::uint32_t device) noexcept
    : raw_{sizeof(sr_queue), kind, device, 0, this, native, call_in_queue, add_gate_to_queue, open_gate_of_queue} {}

}  // namespace shardrun::plugins
