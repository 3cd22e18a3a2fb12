#include <array>
#include <cstdint>
#include <vector>

#include "all_sdk_headers.h"
#include "tests/support/catch.h"

// Values of the SDK that are written in their C form and read again.

using namespace shardrun::sdk;

namespace {

const sr_option_value option = {sizeof(sr_option_value), SR_OPTION_INTEGER, "depth", 5, 0, nullptr, nullptr};
const RawOptions raw_options = {&option, 1, sizeof(option)};
const sr_transport_host raw_host = {};

template <class Raw, class Value>
Value written_and_read(const Value& value) {
  Raw raw{};
  raw.struct_size = sizeof(raw);
  detail::write(value, raw);
  return detail::read(raw);
}

}  // namespace

TEST_CASE("ops come back from their C form as they were", "[sdk]") {
  std::uint32_t memory[4];
  const OpSpec whole = {.opcode = SR_OP_ALL_TO_ALLV,
                        .dtype = SR_DTYPE_BF16,
                        .reduction = SR_REDUCE_MAX,
                        .peer = 4,
                        .flags = SR_OP_FLAG_IN_ORDER,
                        .id = 5,
                        .count = 6,
                        .send_counts = {1, 2},
                        .recv_counts = {3, 4},
                        .send = Buffer{&memory[0], 7, 8, SR_MEMORY_PINNED, 9},
                        .recv = Buffer{&memory[1], 10, 11, SR_MEMORY_CUDA, 12},
                        .scratch = Buffer{&memory[2], 13, 14, SR_MEMORY_HOST, 15},
                        .label = "w"};
  const std::vector<OpSpec> ops = {whole, {.opcode = SR_OP_RECV, .recv = Buffer{.data = &memory[3]}}};

  const detail::WrittenOps written(ops);

  std::vector<OpSpec> read;
  for_each(written.data(), written.size(), sizeof(sr_op),
           [&](const sr_op& raw) { read.push_back(detail::read(raw, 2)); });
  CHECK(read == ops);
  CHECK(written.data()[1].send_counts == nullptr);
}

TEST_CASE("what a transport says comes back from its C form as it was", "[sdk]") {
  const OpInfo info = {.flags = 1, .scratch_bytes = 2};
  const OpTimes times = {.begun = 3, .ended = 4, .starved = 5, .yielded = 6};
  const Arrivals arrivals = {.bytes = 8, .nanoseconds = 9};
  const Props props = {.flags = SR_TRANSPORT_OWN_LAUNCHER, .memory_kinds = 6, .queue_kinds = 7};

  CHECK(written_and_read<sr_op_info>(info) == info);
  CHECK(written_and_read<sr_op_times>(times) == times);
  CHECK(written_and_read<sr_arrivals>(arrivals) == arrivals);
  CHECK(written_and_read<sr_transport_props>(props) == props);
  CHECK(written_and_read<sr_transport_props>(Props{.memory_kinds = 0}) == Props());
  sr_transport_props old{.struct_size = SR_TRANSPORT_PROPS_SIZE_1_0, .queue_kinds = 9};
  detail::write(props, old);
  CHECK(old.queue_kinds == 9);
  sr_op_times shorter{.struct_size = SR_OP_TIMES_SIZE_1_2, .starved = 7};
  detail::write(times, shorter);
  CHECK(shorter.starved == 7);
  CHECK(detail::read(shorter) == OpTimes{.begun = 3, .ended = 4});
}

TEST_CASE("groups come back from their C form as they were", "[sdk]") {
  const GroupSpec group = {.rank = 1, .members = {4, 2}, .name = "data", .id = 3, .deadline = Deadline::past()};

  CHECK(detail::read(detail::write(group)) == group);
}

TEST_CASE("what a transport is told of a job comes back from its C form as it was", "[sdk]") {
  const Setup setup =
      detail::read(detail::write(Setup{.world_size = 3, .options = {}, .host = TransportHost(&raw_host)}, raw_options));

  CHECK(setup.world_size == 3);
  CHECK(setup.options.integer("depth") == 5);
  CHECK(setup.host.raw() == &raw_host);
}

TEST_CASE("the configuration of a rank comes back from its C form as it was", "[sdk]") {
  const Config given = {.rank = 1,
                        .world_size = 2,
                        .local_rank = 3,
                        .local_world_size = 4,
                        .job = "j",
                        .address = "a",
                        .options = {},
                        .deadline = Deadline::past(),
                        .machines = {6, 7},
                        .secret = std::array<std::uint8_t, 32>{8},
                        .host = TransportHost(&raw_host)};

  const Config config = detail::read(detail::write(given, raw_options));

  CHECK(config.rank == 1);
  CHECK(config.world_size == 2);
  CHECK(config.local_rank == 3);
  CHECK(config.local_world_size == 4);
  CHECK(config.job == "j");
  CHECK(config.address == "a");
  CHECK(config.options.integer("depth") == 5);
  CHECK(config.deadline == Deadline::past());
  CHECK(config.machines == given.machines);
  CHECK(config.secret == given.secret);
  CHECK(config.host.raw() == &raw_host);
  Config little = given;
  little.machines.clear();
  little.secret.reset();
  CHECK(detail::write(little, raw_options).machines == nullptr);
  CHECK(detail::write(little, raw_options).secret == nullptr);
}

TEST_CASE("a job comes back from its C form as it was", "[sdk]") {
  Job given = {.ranks = 6, .mesh = {{"data", 3}, {"model", 2}}, .options = {}, .microbatches = 4};
  given.sharding = {{"w", "model", "job.ini:3"}};

  const Job job = detail::read(detail::WrittenJob(given, raw_options).raw());

  CHECK(job.ranks == 6);
  CHECK(job.mesh == given.mesh);
  CHECK(job.options.integer("depth") == 5);
  CHECK(job.microbatches == 4);
  CHECK(job.sharding == given.sharding);
}

TEST_CASE("a graph comes back from its C form as it was", "[sdk]") {
  Graph given;
  given.tensors = {{SR_TENSOR_PARAMETER, "w", {2, 3}, {"in", ""}, 24, 1, 7}, {SR_TENSOR_STATE, "t", {}, {}, 4, -1, 0}};
  given.axes = {{"in", 2}, {"batch", 9}};
  given.cut_points = {{"residual", {9, 2}, {"batch", "in"}, 72, 0}};
  given.layers = {{"layer.0", 1, 2, 3, 4}, {"layer.1", 5, 6, 7, 8}};
  given.before = {"before", 9, 10, 11, 12};
  given.behind = {"behind", 13, 14, 15, 16};

  CHECK(detail::read(detail::WrittenGraph(given).raw()) == given);

  given.cut_points[0].axes.pop_back();
  CHECK_THROWS_WITH(detail::WrittenGraph(given), "'residual' has 2 dimensions but 1 axis names");
}
