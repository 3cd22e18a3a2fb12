// What an sr_error carries across the border.

#include <shardrun/sdk/transport.hpp>

#include <cstring>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "plugins/loader/transport_state.h"
#include "tests/support/catch.h"

using namespace shardrun;

namespace {

sr_error error_of_size(std::uint32_t size) {
  sr_error error;
  std::memset(&error, 0xA5, sizeof(error));
  error.struct_size = size;
  return error;
}

std::int32_t throw_over(sr_error& error, const sdk::TransportError& failure) {
  return sdk::detail::guarded_transport(&error, [&]() -> std::int32_t { throw failure; });
}

}  // namespace

TEST_CASE("the rank that was waited for crosses the border as a field", "[sdk]") {
  sr_error error = error_of_size(sizeof(sr_error));

  CHECK(throw_over(error, {SR_TIMEOUT, "too late", 0}) == SR_TIMEOUT);
  CHECK(error.awaited == 1);
  const sdk::TransportError read = plugins::failure_of(SR_TIMEOUT, error);
  CHECK(read.status() == SR_TIMEOUT);
  CHECK(read.awaited() == 0U);
  CHECK(read.within("sum").awaited() == 0U);
  try {
    plugins::fail("transport wire", read.within("sum"));
  } catch (const Error& thrown) {
    CHECK(thrown.code() == ErrorCode::timeout);
    CHECK(thrown.message() == "transport wire: sum: too late");
    CHECK(thrown.awaited() == 0);
  }
}

TEST_CASE("an error without an awaited rank clears the rank of the last error", "[sdk]") {
  sr_error error = error_of_size(sizeof(sr_error));
  CHECK(throw_over(error, {SR_PEER_LOST, "it is gone", 7}) == SR_PEER_LOST);

  CHECK(throw_over(error, {SR_TIMEOUT, "waiting for member 1 (rank 3)"}) == SR_TIMEOUT);

  CHECK(error.awaited == 0);
  CHECK_FALSE(plugins::failure_of(SR_TIMEOUT, error).awaited());
}

TEST_CASE("an error for a host with the first ABI is written within its size", "[sdk]") {
  sr_error error = error_of_size(SR_ERROR_SIZE_1_0);
  const std::uint32_t behind = error.awaited;

  CHECK(throw_over(error, {SR_TIMEOUT, std::string(1000, 'x'), 3}) == SR_TIMEOUT);

  CHECK(std::strlen(error.text) == sizeof(error.text) - 1);
  CHECK(error.awaited == behind);
}
