#include "plugins/loader/background.h"

#include <algorithm>
#include <chrono>

#include "plugins/loader/call.h"

namespace shardrun::plugins {
namespace {

/// How long one wait for an op lasts at most. It is shorter than longest_gap, so that the clock counts all of it.
constexpr std::chrono::nanoseconds check_interval = sdk::longest_gap / 2;

/// How far an op may exceed its deadline before the plugin counts as one that ignores deadlines.
constexpr std::chrono::seconds grace(5);

}  // namespace

void run_in_background(const TransportState& transport, std::uint64_t op, sdk::Deadline deadline, sdk::Worker& worker,
                       const std::function<std::optional<sdk::TransportError>()>& failure) {
  const sr_transport& functions = transport.functions;
  const sdk::Deadline latest = deadline + grace;
  sr_error error = empty_error();
  std::int32_t status = functions.op_start(transport.self, op, nullptr, deadline.to_border(), &error);
  bool is_pending = status == SR_OK;
  while (is_pending) {
    const sdk::Deadline now = sdk::Deadline::now();
    const sdk::Deadline until = std::min(latest, now + check_interval);
    error = empty_error();
    status = functions.op_wait(transport.self, op, until.to_border(), &error);
    worker.clean_up_meanwhile();  // so that freeing an op does not wait for this one
    // A wait that ran out of time and an op past its deadline have the same status. Only in the first case is the op
    // still pending.
    is_pending = status == SR_TIMEOUT && now < latest;
    if (is_pending) {
      status = functions.op_test(transport.self, op, &error);
      is_pending = status == SR_PENDING;
    }
    if (const auto reason = is_pending ? failure() : std::nullopt) {
      throw sdk::TransportError(*reason);
    }
  }
  if (status != SR_OK) {
    throw failure_of(status, error);
  }
}

void free_op(const TransportState& transport, std::uint64_t op) noexcept {
  sr_error error = empty_error();
  (void)transport.functions.op_free(transport.self, op, &error);
}

}  // namespace shardrun::plugins
