#include <shardrun/sdk/transport.hpp>

#include <cstdint>
#include <string>

#include "tests/support/catch.h"

using namespace shardrun::sdk;
using Catch::Contains;

namespace {

constexpr std::int64_t never = INT64_MAX;

/// A host whose clock is moved by waiting, and whose store waits until the deadline whatever happens.
struct SlowHost {
  std::int64_t clock = 1'000'000'000;
  std::int64_t aborted_at = never;
  std::int64_t set_at = never;
  std::int32_t early_status = SR_OK;  ///< what a wait ends with at once; SR_OK: it waits

  sr_transport_host raw = {sizeof(sr_transport_host), 0, this, now, aborted, nullptr, store_get, nullptr};

  static SlowHost& of(void* self) { return *static_cast<SlowHost*>(self); }
  static std::int64_t now(void* self) { return of(self).clock; }
  static std::uint32_t aborted(void* self) { return of(self).clock >= of(self).aborted_at ? 1 : 0; }
  static std::int32_t store_get(void* self, const char*, void* value, std::uint64_t* bytes, std::int64_t deadline,
                                sr_error* error) {
    SlowHost& host = of(self);
    if (host.early_status != SR_OK) {
      return host.early_status;
    }
    if (deadline < host.set_at) {
      host.clock = deadline;
      detail::write_error(error, "nobody has set it");
      return SR_TIMEOUT;
    }
    *static_cast<char*>(value) = 'v';
    *bytes = 1;
    return SR_OK;
  }
};

TransportError failure_of(const SlowHost& host, std::int64_t deadline) {
  try {
    (void)TransportHost(&host.raw).store_get("the key", from_border(deadline));
  } catch (const TransportError& error) {
    return error;
  }
  return {SR_OK, "nothing"};
}

}  // namespace

TEST_CASE("a wait for the store ends with the job, though the host's own wait does not", "[sdk]") {
  SlowHost host;
  host.aborted_at = host.clock + 5'000'000'000;

  const TransportError error = failure_of(host, never);

  CHECK(error.status() == SR_ABORTED);
  CHECK_THAT(error.what(), Contains("'the key'"));
  CHECK(host.clock < host.aborted_at + 1'000'000'000);
}

TEST_CASE("a wait for the store ends by its deadline", "[sdk]") {
  SlowHost host;
  const std::int64_t deadline = host.clock + 3'456'789'012;

  const TransportError error = failure_of(host, deadline);

  CHECK(error.status() == SR_TIMEOUT);
  CHECK_THAT(error.what(), Contains("waited 345") && Contains("'the key'"));  // and not only the last slice
  CHECK(host.clock >= deadline);
}

TEST_CASE("a value that is set late is found", "[sdk]") {
  SlowHost host;
  host.set_at = host.clock + 7'000'000'000;

  CHECK(TransportHost(&host.raw).store_get("the key", never) == "v");
}

TEST_CASE("a store that gives up early is believed", "[sdk]") {
  SlowHost host;
  host.early_status = GENERATE(SR_TIMEOUT, SR_ABORTED, SR_INVALID);

  CHECK(failure_of(host, never).status() == host.early_status);
}
