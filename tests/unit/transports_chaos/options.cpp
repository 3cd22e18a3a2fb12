#include <shardrun/transport.h>

#include <string>
#include <utility>

#include "plugins/loader/transport.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::plugins;
using Catch::Contains;

namespace {

/// Of a job of four ranks.
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

TEST_CASE("chaos: what the transport below says of itself passes through, before anything is opened") {
  for (const char* over : {"shm", "gloo"}) {
    Transport inner = Transport::load({SHARDRUN_BUILT_PLUGINS}, over);
    Transport chaos = Transport::load({SHARDRUN_BUILT_PLUGINS}, "chaos");
    chaos.configure({.options = {{"over", std::string(over)}}, .world_size = 2});

    CHECK(chaos.props().same_host_only == inner.props().same_host_only);
    CHECK(chaos.props().moves_host_memory);
    const OpRequest op{
        .opcode = SR_OP_REDUCE_SCATTER, .dtype = SR_DTYPE_F32, .reduction = SR_REDUCE_SUM, .count = 1000};
    CHECK(chaos.query(op, 3).scratch_bytes == inner.query(op, 3).scratch_bytes);
    CHECK(chaos.query(op, 3).flags == inner.query(op, 3).flags);
  }
}
