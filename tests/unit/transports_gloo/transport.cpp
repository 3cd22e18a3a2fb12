#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"
#include "tests/unit/transports_gloo/system.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;
using Catch::EndsWith;

/// Called by LeakSanitizer. Gloo leaks 64 bytes when it looks up an address and then refuses it.
extern "C" const char* __lsan_default_suppressions() { return "leak:gloo::transport::tcp::CreateDevice"; }

namespace {

std::uint32_t flags_of(std::uint32_t opcode, std::uint32_t dtype, std::uint32_t members) {
  std::vector<float> none;
  sdk::OpSpec request = request_of(opcode, 1, 1000, none);
  request.dtype = dtype;
  return plugins::Transport::load({SHARDRUN_BUILT_PLUGINS}, "gloo").query(request, members).flags;
}

}  // namespace

TEST_CASE("gloo: Gloo's own collectives run where they round as they are to") {
  CHECK((flags_of(SR_OP_ALL_REDUCE, SR_DTYPE_F32, 3) & SR_OP_INFO_NATIVE) != 0);
  CHECK((flags_of(SR_OP_ALL_REDUCE, SR_DTYPE_F32, 3) & (SR_OP_INFO_ORDERED | SR_OP_INFO_STEPWISE)) == 0);
  CHECK((flags_of(SR_OP_ALL_REDUCE, SR_DTYPE_BF16, 2) & SR_OP_INFO_NATIVE) != 0);
  CHECK((flags_of(SR_OP_ALL_REDUCE, SR_DTYPE_BF16, 3) & SR_OP_INFO_NATIVE) == 0);
  CHECK((flags_of(SR_OP_ALL_REDUCE, SR_DTYPE_BF16, 3) & SR_OP_INFO_STEPWISE) != 0);
  CHECK((flags_of(SR_OP_ALL_GATHER, SR_DTYPE_BF16, 3) & SR_OP_INFO_NATIVE) != 0);
  CHECK((flags_of(SR_OP_REDUCE_SCATTER, SR_DTYPE_F32, 3) & SR_OP_INFO_NATIVE) == 0);
}

TEST_CASE("gloo: an address that a network reaches is refused unless everyone there is trusted") {
  SharedHost host;
  CHECK_THAT(error_of([&] { Rank(host, "gloo", 0, 2, "192.0.2.1"); }), Contains("listen at 192.0.2.1") &&
                                                                           Contains("use transport tcp") &&
                                                                           Contains("[transport.gloo] trusted = true"));
  CHECK_THAT(error_of([&] {
               Rank(host, "gloo", 0, 2, "192.0.2.1", {.options = {{"trusted", true}}});
             }),
             Contains("cannot listen on '192.0.2.1'"));
}

TEST_CASE("gloo: a message of another size than its receive is waited for in vain") {
  std::string error;
  const std::uint64_t sent = GENERATE(as<std::uint64_t>(), 11, 100'000);
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(100'000);
    auto op = rank.rank() == 0 ? group.prepare({request_of(SR_OP_SEND, 7, sent, data, 1)}, after(30))
                               : group.prepare({request_of(SR_OP_RECV, 7, 10, data, 0)}, after(30));
    op.start(after(0.1));
    const std::string message = error_of([&] { finish(op); });
    if (rank.rank() == 1) {
      error = message;
    }
    rank.meet("end");
  });
  CHECK_THAT(error, Contains("recv of 10 f32 from member 0") && Contains("member 0 (rank 0)"));
}

TEST_CASE("gloo: a member that aborts is named as lost by the others") {
  ErrorCode code = ErrorCode::internal;
  std::string message;
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(1'000'000);
    auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, data.size(), data)}, after(30));
    if (rank.rank() == 1) {
      group.abort("enough");
      rank.meet("end");
      return;
    }
    try {
      run(op);
    } catch (const Error& error) {
      code = error.code();
      message = error.message();
    }
    rank.meet("end");
  });
  CHECK(code == ErrorCode::peer_lost);
  CHECK_THAT(message, Contains("all_reduce (sum) of 1000000 f32") && Contains("member 1 (rank 1) is lost"));
}

TEST_CASE("gloo: a member that has gone after it told its address is lost") {
  SharedHost host;
  {
    Rank gone(host, "gloo", 0, 2);
    CHECK_THAT(error_of([&] { (void)gone.group(1, 0.05); }), Contains("waiting for member 1 (rank 1)"));
  }
  Rank rank(host, "gloo", 1, 2);
  CHECK_THAT(error_of([&] { (void)rank.group(1, 0.5); }),
             Contains("connecting the group 'all': member 0 (rank 0) is lost: "));
}

TEST_CASE("gloo: no member has its group before all members have completed their connections") {
  HeldConnection held;
  std::atomic<int> with_group = 0;
  int before = -1;
  std::jthread other([&](const std::stop_token& is_over) {
    while (!held.holds() && !is_over.stop_requested()) {
      std::this_thread::yield();
    }
    // No event tells that a group is not made, so this sleeps: by then a member would have its group.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    before = with_group;
    held.release();
  });
  run_ranks("gloo", 2, [&](Rank& rank) {
    const auto group = rank.group();
    ++with_group;
    rank.meet("end");
  });
  other.join();
  CHECK(before == 0);
  CHECK(with_group == 2);
}

TEST_CASE("gloo: a group is not affected by an earlier failed group of the same id") {
  std::array<float, 2> sums = {};
  run_ranks("gloo", 2, [&](Rank& rank) {
    std::vector<float> data(10, 1.0F);
    {
      auto group = rank.group();
      rank.meet("all are connected");
      group.abort("once");
    }
    auto group = rank.group();
    auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, data.size(), data)}, after(30));
    run(op);
    sums[rank.rank()] = data[0];
    rank.meet("end");
  });
  CHECK(sums == std::array<float, 2>{2, 2});
}

TEST_CASE("gloo: messages arrive even if their sender has left") {
  const std::size_t count = GENERATE(as<std::size_t>(), 1, 100'000);
  float sum = 0;
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    for (std::uint64_t id = 1; id <= 20; ++id) {
      std::vector<float> data(count, rank.rank() == 0 ? static_cast<float>(id) : 0.0F);
      auto op = group.prepare(
          {request_of(rank.rank() == 0 ? SR_OP_SEND : SR_OP_RECV, id, count, data, 1 - rank.rank())}, after(30));
      run(op);
      if (rank.rank() == 1) {
        sum += data.back();
      }
    }
    // Rank 0 is the first to come here; its group and transport end at once.
  });
  CHECK(sum == 210.0F);
}

TEST_CASE("gloo: wire_bytes counts messages and Gloo's preambles") {
  std::array<std::uint64_t, 2> bytes = {};
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(1000);
    auto op = group.prepare(
        {request_of(rank.rank() == 0 ? SR_OP_SEND : SR_OP_RECV, 1, data.size(), data, 1 - rank.rank())}, after(30));
    const std::uint64_t before = rank.transport().wire_bytes();
    run(op);
    bytes[rank.rank()] = rank.transport().wire_bytes() - before;
  });
  CHECK(bytes == std::array<std::uint64_t, 2>{4000 + 2 * 48, 48});
}
