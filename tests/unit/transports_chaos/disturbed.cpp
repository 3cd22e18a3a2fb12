#include <shardrun/transport.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugins/loader/transport.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"

using namespace shardrun;
using namespace shardrun::plugins;
using namespace shardrun::test;
using Catch::Contains;

namespace {

/// The error about these options in a job of four ranks.
std::string refusal(OptionValues options) {
  Transport chaos = Transport::load({SHARDRUN_BUILT_PLUGINS}, "chaos");
  return test::error_of([&] { chaos.configure({.options = std::move(options), .world_size = 4}); });
}

constexpr std::int64_t one = 1;

}  // namespace

TEST_CASE("chaos: faults that make no sense are refused before anything is opened") {
  CHECK_THAT(refusal({{"kill_rank", one}}), Contains("kill_rank is set, but no at_op"));
  CHECK_THAT(refusal({{"corrupt", true}, {"at_op", one}}), Contains("corrupt is set, but no rank"));
  CHECK_THAT(refusal({{"stall", true}, {"rank", one}}), Contains("stall is set, but no at_op"));
  CHECK_THAT(refusal({{"stall", true}, {"corrupt", true}, {"rank", one}, {"at_op", one}}),
             Contains("corrupt and stall are both set: choose one fault at a time"));
  CHECK_THAT(refusal({{"kill_rank", one}, {"drop_peer", one}, {"at_op", one}}),
             Contains("kill_rank and drop_peer are both set"));
  CHECK_THAT(refusal({{"kill_rank", one}, {"rank", std::int64_t{2}}, {"at_op", one}}), Contains("leave out rank = 2"));
  CHECK_THAT(refusal({{"drop_peer", one}, {"rank", one}, {"at_op", one}}), Contains("is the rank itself"));
  CHECK_THAT(refusal({{"kill_rank", std::int64_t{4}}, {"at_op", one}}),
             Contains("kill_rank = 4: the job has ranks 0 to 3"));
  CHECK_THAT(refusal({{"drop_peer", std::int64_t{9}}, {"rank", one}, {"at_op", one}}),
             Contains("drop_peer = 9: the job has ranks 0 to 3"));
  CHECK_THAT(refusal({{"at_op", one}}), Contains("at_op = 1 has no effect"));
  CHECK_THAT(refusal({{"rank", one}}), Contains("rank = 1 has no effect"));
  CHECK_THAT(refusal({{"over", std::string("chaos")}}), Contains("over = chaos: name the transport"));
  CHECK_THAT(refusal({{"over", std::string("pigeon")}}), Contains("pigeon") && Contains("shm"));
  CHECK_THAT(refusal({{"delay_ms", -1.0}}), Contains("delay_ms"));
}

TEST_CASE("chaos: properties of the transport below pass through before it is opened") {
  for (const char* over : {"shm", "tcp"}) {
    Transport inner = Transport::load({SHARDRUN_BUILT_PLUGINS}, over);
    Transport chaos = Transport::load({SHARDRUN_BUILT_PLUGINS}, "chaos");
    chaos.configure({.options = {{"over", std::string(over)}}, .world_size = 2});

    CHECK(chaos.props().has(SR_TRANSPORT_SAME_HOST) == inner.props().has(SR_TRANSPORT_SAME_HOST));
    CHECK(chaos.props().moves(SR_MEMORY_HOST));
    const sdk::OpSpec op{
        .opcode = SR_OP_REDUCE_SCATTER, .dtype = SR_DTYPE_F32, .reduction = SR_REDUCE_SUM, .count = 1000};
    CHECK(chaos.query(op, 3).scratch_bytes == inner.query(op, 3).scratch_bytes);
    CHECK(chaos.query(op, 3).flags == inner.query(op, 3).flags);
  }
}

namespace {

constexpr std::int64_t victim = 1;

/// Runs ranks over chaos, which itself runs over shm and then over tcp.
void run_over(OptionValues options, std::uint32_t n, const std::function<void(Rank&)>& act) {
  options.set("over", GENERATE(std::string("shm"), std::string("tcp")));
  INFO(options.text("over"));
  SharedHost host;
  run_ranks(host, "chaos", n, act, {.options = std::move(options)});
}

TransportOp sum(TransportGroup& group, std::vector<float>& data, std::uint64_t id = 1) {
  return group.prepare({request_of(SR_OP_ALL_REDUCE, id, data.size(), data)}, after(30));
}

sdk::OpSpec message(std::uint32_t opcode, std::uint32_t peer, std::uint64_t id, std::vector<float>& data) {
  sdk::OpSpec request = request_of(opcode, id, data.size(), data, peer);
  (opcode == SR_OP_SEND ? request.recv : request.send).reset();
  return request;
}

}  // namespace

TEST_CASE("chaos: ops that start late end right, and the caller goes on meanwhile") {
  run_over({{"delay_ms", 2.0}, {"rank", victim}}, 3, [](Rank& rank) {
    TransportGroup group = rank.group();
    TransportGroup other = rank.group(2);
    std::vector<float> a(1000);
    std::vector<float> b(10);
    TransportOp first = sum(group, a);
    TransportOp second = sum(other, b);
    for (int round = 0; round < 5; ++round) {
      std::fill(a.begin(), a.end(), 1.0F);
      std::fill(b.begin(), b.end(), static_cast<float>(rank.rank()));
      first.start(after(30));
      second.start(after(30));
      while (round % 2 == 0 && !second.test()) {
      }
      finish(first);
      finish(second);
      REQUIRE(a == std::vector<float>(1000, 3.0F));
      REQUIRE(b == std::vector<float>(10, 3.0F));
    }
    rank.meet("end");
  });
}

TEST_CASE("chaos: an op delayed past its deadline fails at its deadline, whether it is polled or not") {
  const bool looked_at = GENERATE(false, true);
  run_over({{"delay_ms", 3'600'000.0}, {"rank", victim}}, 2, [looked_at](Rank& rank) {
    TransportGroup group = rank.group();
    std::vector<float> data(10);
    TransportOp op = sum(group, data);
    if (rank.rank() == victim) {
      op.start(after(0.05));
      while (!looked_at && !group.error()) {
        std::this_thread::yield();
      }
      CHECK_THAT(error_of([&] { finish(op); }), Contains("group all") && Contains("all_reduce (sum) of 10 f32") &&
                                                    Contains("is past its deadline, before it was to start"));
      CHECK_THAT(group.error().value_or(""), Contains("before it was to start"));
    }
    rank.meet("end");
    group.abort("enough");
  });
}

TEST_CASE("chaos: one bit is flipped, on one rank, by one op") {
  run_over({{"corrupt", true}, {"rank", victim}, {"at_op", std::int64_t{2}}}, 3, [](Rank& rank) {
    TransportGroup group = rank.group();
    std::vector<float> data(101);
    TransportOp op = sum(group, data);
    TransportOp barrier = group.prepare({{.opcode = SR_OP_BARRIER, .id = 2}}, after(30));
    run(barrier);
    run(barrier);  // the second receives nothing
    for (int round = 0; round < 3; ++round) {
      std::fill(data.begin(), data.end(), 1.0F);
      run(op);
      const bool is_spoilt = rank.rank() == victim && round == 0;
      std::vector<float> expected(101, 3.0F);
      expected[50] = is_spoilt ? 12.0F : 3.0F;  // the second lowest bit of the exponent is flipped
      CHECK(data == expected);
    }
    rank.meet("end");
  });
}

TEST_CASE("chaos: a flipped bit lies in data of another member, in an element that is not zero") {
  run_over({{"corrupt", true}, {"rank", victim}, {"at_op", std::int64_t{1}}}, 2, [](Rank& rank) {
    TransportGroup group = rank.group();
    std::vector<float> mine(8, 1.0F);
    mine[2] = mine[4] = rank.rank() == 0 ? 0.0F : 1.0F;
    std::vector<float> all(16);
    sdk::OpSpec request = request_of(SR_OP_ALL_GATHER, 1, 8, mine);
    request.recv = buffer_of(all);
    TransportOp op = group.prepare({request}, after(30));
    run(op);
    const std::size_t changed = 5;  // rank 0's element in the middle, 4, is zero
    std::vector<float> expected(16, 1.0F);
    expected[2] = expected[4] = 0.0F;
    expected[changed] = rank.rank() == victim ? 0.25F : 1.0F;
    CHECK(all == expected);
    rank.meet("end");
  });
}

TEST_CASE("chaos: a stalled rank reports nothing until it is aborted, and its peers name it") {
  run_over({{"stall", true}, {"rank", victim}, {"at_op", std::int64_t{2}}}, 2, [](Rank& rank) {
    TransportGroup group = rank.group();
    std::vector<float> data(10, 1.0F);
    TransportOp op = sum(group, data);
    run(op);
    op.start(after(0.1));
    if (rank.rank() == victim) {
      rank.meet("the other has given up");
      CHECK_FALSE(op.test());
      CHECK_FALSE(op.wait(after(0.02)));
      std::thread aborting([&] { group.abort("the job was given up"); });
      CHECK_THAT(error_of([&] { finish(op); }), Contains("the job was given up"));
      aborting.join();
    } else {
      CHECK_THAT(error_of([&] { finish(op); }), Contains("deadline") && Contains(" member 1 (rank 1"));
      rank.meet("the other has given up");
    }
    rank.meet("end");
  });
}

TEST_CASE("chaos: a stalled rank ends with the job") {
  SharedHost host;
  run_ranks(host, "chaos", 2,
            [&host](Rank& rank) {
              TransportGroup group = rank.group();
              std::vector<float> data(10);
              TransportOp op = sum(group, data);
              if (rank.rank() == victim) {
                op.start(after(30));
                host.abort();
                CHECK_THAT(error_of([&] { finish(op); }), Contains("the job ends"));
              }
              rank.meet("end");
            },
            {.options = {{"stall", true}, {"rank", victim}, {"at_op", std::int64_t{1}}}});
}

TEST_CASE("chaos: only messages between the two dropped ranks are lost, from the given op on") {
  run_over({{"drop_peer", std::int64_t{2}}, {"rank", victim}, {"at_op", std::int64_t{2}}}, 3, [](Rank& rank) {
    TransportGroup group = rank.group();
    std::vector<float> to_first(10, static_cast<float>(rank.rank()));
    std::vector<float> to_last = to_first;
    std::vector<float> from_last(10);
    if (rank.rank() == victim) {
      TransportOp both =
          group.prepare({message(SR_OP_SEND, 2, 1, to_last), message(SR_OP_SEND, 0, 1, to_first)}, after(30));
      TransportOp receive = group.prepare({message(SR_OP_RECV, 2, 2, from_last)}, after(30));
      run(both);  // arrives at both
      run(both);  // arrives at the first alone
      rank.meet("looked");
      receive.start(after(0.1));
      CHECK_THAT(
          error_of([&] { finish(receive); }),
          Contains("recv of 10 f32 from member 2") && Contains("is past its deadline, waiting for member 2 (rank 2)"));
      std::optional<int> awaited;
      try {
        finish(receive);
      } catch (const Error& error) {
        awaited = error.awaited();
      }
      CHECK(awaited == 2);
      rank.meet("lost");
    } else {
      std::vector<float> received(10);
      TransportOp receive = group.prepare({message(SR_OP_RECV, 1, 1, received)}, after(30));
      run(receive);
      CHECK(received == std::vector<float>(10, 1.0F));
      std::fill(received.begin(), received.end(), -1.0F);
      if (rank.rank() == 0) {
        run(receive);
        CHECK(received == std::vector<float>(10, 1.0F));
      } else {
        receive.start(after(30));
        CHECK_FALSE(receive.wait(after(0.1)));
      }
      rank.meet("looked");
      rank.meet("lost");
      group.abort("enough");
    }
    rank.meet("end");
  });
}

TEST_CASE("chaos: a collective between two ranks that dropped each other names the peer") {
  run_over({{"drop_peer", std::int64_t{0}}, {"rank", victim}, {"at_op", std::int64_t{1}}}, 2, [](Rank& rank) {
    TransportGroup group = rank.group();
    std::vector<float> data(10);
    TransportOp op = sum(group, data);
    op.start(after(0.1));
    const std::string other = rank.rank() == 0 ? "member 1 (rank 1" : "member 0 (rank 0";
    const std::string error = error_of([&] { finish(op); });
    CHECK_THAT(error, Contains("all_reduce (sum) of 10 f32") && Contains(other));
    rank.meet("end");
  });
}

TEST_CASE("chaos: a wait within the inner transport keeps its own deadline") {
  run_over({{"corrupt", true}, {"rank", victim}, {"at_op", std::int64_t{1}}}, 2, [](Rank& rank) {
    TransportGroup group = rank.group();
    std::vector<float> data(10, 1.0F);
    TransportOp op = sum(group, data);
    if (rank.rank() == 0) {
      op.start(after(600));
      const auto begin = std::chrono::steady_clock::now();
      CHECK_FALSE(op.wait(after(1)));
      // 4 s only tell a right wait from a wrong one: with a clock that looked once a wait, it took 5.5 s.
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(4));
    }
    rank.meet("end");
    group.abort("enough");
  });
}
