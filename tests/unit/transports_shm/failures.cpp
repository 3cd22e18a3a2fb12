#include <array>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"
#include "tests/unit/transports_shm/stand_in.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

/// What op_test alone says of an op that does not become complete.
std::string polled_error_of(plugins::TransportOp& op) {
  return error_of([&] {
    while (!op.test()) {
      std::this_thread::yield();
    }
  });
}

}  // namespace

TEST_CASE("shm: who only polls an op hears that a peer has failed or ended") {
  const std::uint32_t flags = GENERATE(0U, SR_OP_FLAG_BLOCKING);
  const bool ends = GENERATE(false, true);
  std::string error;
  StandInHost host(1);
  run_ranks(host, "shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(10);
    auto request = request_of(SR_OP_ALL_REDUCE, 1, data.size(), data);
    request.flags = flags;
    auto op = group.prepare({request}, after(30));
    if (rank.rank() == 1 && ends) {
      host.end_process();
    } else if (rank.rank() == 1) {
      group.abort("enough");
    }
    rank.meet("one does not go on");
    if (rank.rank() == 0) {
      op.start(after(30));
      error = polled_error_of(op);
    }
    rank.meet("end");
  });
  CHECK_THAT(error, Contains("group all: member 1 (rank 1") && Contains(ends ? "is gone" : "has failed"));
}

TEST_CASE("shm: a peer that has done its part and ends is not missed") {
  const std::uint32_t opcode = GENERATE(SR_OP_BARRIER, SR_OP_SEND);
  std::string error = "not run";
  StandInHost host(1);
  run_ranks(host, "shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(10);
    const std::uint32_t own = opcode == SR_OP_SEND && rank.rank() == 1 ? SR_OP_RECV : opcode;
    auto op = group.prepare({request_of(own, 1, data.size(), data, 1 - rank.rank())}, after(30));
    rank.meet("all is prepared");
    if (rank.rank() == 0) {
      // It has seen that the op is not complete, and is about to look whether its peer is there.
      host.at_next_look([&] {
        (void)error_of([&] {
          host.meet("rank 0 looks", 2);
          host.meet("rank 1 has ended", 2);
        });
      });
      error = error_of([&] { run(op); });
    } else {
      rank.meet("rank 0 looks");
      run(op);
      host.end_process();
      rank.meet("rank 1 has ended");
    }
    rank.meet("end");
  });
  CHECK(error == "nothing");
}

TEST_CASE("shm: a member that ends or fails is nothing to sends and receives between others") {
  const bool ends = GENERATE(true, false);
  float got = 0;
  std::array<std::string, 3> errors;
  StandInHost host(0);
  run_ranks(host, "shm", 3, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(10, static_cast<float>(rank.rank()));
    auto barrier = group.prepare({request_of(SR_OP_BARRIER, 1, 0, data)}, after(30));
    if (rank.rank() == 0) {
      rank.meet("all is prepared");
      ends ? host.end_process() : group.abort("enough");
      rank.meet("one has left");
      rank.meet("end");
      return;
    }
    const bool sends = rank.rank() == 1;
    auto letter = group.prepare({request_of(sends ? SR_OP_SEND : SR_OP_RECV, 2, 10, data, 3 - rank.rank())}, after(30));
    rank.meet("all is prepared");
    rank.meet("one has left");
    if (sends) {
      host.await_looks(2);  // the receiver's: by the second, the first has found nothing
    }
    run(letter);
    got = sends ? got : data[0];
    host.meet("exchanged", 2);
    errors[rank.rank()] = group.error().value_or("") + error_of([&] { run(barrier); });
    rank.meet("end");
  });
  CHECK(got == 1);
  // Whoever finds out first has failed too.
  const std::string& told = errors[1].find("member 0") != std::string::npos ? errors[1] : errors[2];
  CHECK_THAT(told, Contains("group all: member 0 (rank 0") && Contains(ends ? "is gone" : "has failed"));
  CHECK_THAT(errors[1] + errors[2], !Contains("nothing"));
}

TEST_CASE("shm: the end of the job ends connecting to a rank that never comes") {
  SharedHost host;
  const std::uint32_t self = GENERATE(0U, 1U);
  Rank rank(host, "shm", self, 2);
  std::thread other([&] { host.abort(); });
  CHECK_THAT(error_of([&] { (void)rank.group(1, 1e6); }), Contains("the job ends"));
  other.join();
}

TEST_CASE("shm: the end of the job ends what waits") {
  const std::uint32_t flags = GENERATE(0U, SR_OP_FLAG_BLOCKING);
  std::string error;
  run_ranks("shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(10);
    auto request = request_of(SR_OP_ALL_REDUCE, 1, data.size(), data);
    request.flags = flags;
    auto op = group.prepare({request}, INT64_MAX);
    rank.meet("all is prepared");
    if (rank.rank() == 0) {
      op.start(INT64_MAX);
      rank.host().abort();
      error = error_of([&] { (void)op.wait(INT64_MAX); });
    }
    rank.meet("end");
  });
  CHECK_THAT(error, Contains("group all was aborted"));
}
