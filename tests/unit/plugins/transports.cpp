#include "plugins/loader/transport.h"

#include <shardrun/transport.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/unit/plugins/fixtures.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::plugins;
using Catch::Contains;

namespace {

constexpr std::int64_t never = INT64_MAX;

class MapHost final : public TransportHost {
 public:
  [[nodiscard]] bool aborted() const noexcept override { return false; }
  void store_set(const std::string& key, std::string value) override { values[key] = std::move(value); }
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t) override {
    const auto found = values.find(key);
    if (found == values.end()) {
      throw Error(ErrorCode::timeout, "nobody set " + key);
    }
    return found->second + suffix;
  }

  std::map<std::string, std::string> values;
  std::string suffix;
};

sdk::Config config_of(std::uint32_t world_size) {
  return {.world_size = world_size, .local_world_size = world_size, .job = "j1", .address = "127.0.0.1"};
}

Transport opened_solo(MapHost& host) {
  Transport solo = Transport::load(fixtures, "solo");
  solo.open(config_of(1), host);
  return solo;
}

TransportGroup alone(Transport& transport) { return transport.group({.members = {0}, .name = "data", .id = 1}); }

sdk::OpSpec reduction(std::vector<float>& send, std::vector<float>& recv) {
  return {.opcode = SR_OP_ALL_REDUCE,
          .dtype = SR_DTYPE_F32,
          .reduction = SR_REDUCE_SUM,
          .id = 1,
          .count = send.size(),
          .send = sdk::Buffer{send.data(), send.size() * sizeof(float)},
          .recv = sdk::Buffer{recv.data(), recv.size() * sizeof(float)},
          .label = "weights"};
}

}  // namespace

TEST_CASE("a transport's properties are known before it is opened", "[plugins]") {
  const Transport solo = Transport::load(fixtures, "solo");

  CHECK(solo.manifest().kind == PluginKind::transport);
  CHECK(solo.manifest().name == "solo");
  REQUIRE(solo.options().size() == 1);
  CHECK(solo.options()[0].name == "loud");
  CHECK(solo.props().has(SR_TRANSPORT_SAME_HOST));
  CHECK(solo.props().moves(SR_MEMORY_HOST));  // it names no kinds of memory
  CHECK(solo.props().memory_kinds == 1U << SR_MEMORY_HOST);
  CHECK(solo.props().queue_kinds == 0);
  const Transport wrap = Transport::load(fixtures, "wrap");
  CHECK_FALSE(wrap.props().has(SR_TRANSPORT_SAME_HOST));
  CHECK_FALSE(wrap.props().moves(SR_MEMORY_HOST));
  CHECK(wrap.props().memory_kinds == 1U << SR_MEMORY_CUDA);
}

TEST_CASE("a strategy's file is not a transport", "[plugins]") {
  CHECK_THAT(error_of([] { static_cast<void>(Transport::load(fixtures, "rows")); }),
             Contains("2: ") && Contains("rows"));
}

TEST_CASE("an op that a transport lacks is composed of others, and takes scratch", "[plugins]") {
  const Transport solo = Transport::load(fixtures, "solo");
  std::vector<float> data(10);
  const sdk::OpSpec op = reduction(data, data);

  CHECK(solo.query(op, 1).flags == (SR_OP_INFO_NATIVE | SR_OP_INFO_ORDERED));
  CHECK(solo.query(op, 1).scratch_bytes == 0);
  CHECK(solo.query(op, 3).scratch_bytes == 2 * 10 * sizeof(float));
  CHECK((solo.query(op, 3).flags & SR_OP_INFO_NATIVE) == 0);
  sdk::OpSpec send = op;
  send.opcode = SR_OP_SEND;
  CHECK_THAT(error_of([&] { static_cast<void>(solo.query(send, 2)); }),
             Contains("1: transport solo, asked for send of 10 f32 to member 0 'weights'") && Contains("not offered"));
  sdk::OpSpec unknown = op;
  unknown.dtype = 99;
  CHECK_THAT(error_of([&] { static_cast<void>(solo.query(unknown, 2)); }), Contains("dtype 99 is not known"));
}

TEST_CASE("an op that a transport lacks in a device's memory is refused when it is queried", "[plugins]") {
  const Transport solo = Transport::load(fixtures, "solo");
  const Transport wrap = Transport::load(fixtures, "wrap");
  std::vector<float> data(10);
  sdk::OpSpec op = reduction(data, data);
  op.recv->kind = SR_MEMORY_CUDA;  // solo offers what is sent from there

  CHECK_THAT(error_of([&] { static_cast<void>(solo.query(op, 3)); }),
             Contains("1: transport solo, ") && Contains("of 10 f32") &&
                 Contains("'weights': it does not offer this op (") && Contains(" is not offered), and what"));
  CHECK(wrap.query(op, 3).scratch_bytes == 0);
  op.flags = SR_OP_FLAG_IN_ORDER;
  CHECK_THAT(
      error_of([&] { static_cast<void>(wrap.query(op, 3)); }),
      Contains("transport wrap, ") && Contains("it does not reduce in the order of the members, as the job asks"));
  CHECK(wrap.query(op, 1).scratch_bytes == 0);
}

TEST_CASE("a transport reaches the host's store and its options", "[plugins]") {
  MapHost host;
  {
    Transport solo = Transport::load(fixtures, "solo");
    solo.configure({.options = {{"loud", true}}});
    solo.open(config_of(1), host);
  }
  CHECK(host.values == std::map<std::string, std::string>{{"solo/j1", "127.0.0.1"}});

  host.suffix = "!";
  Transport solo = Transport::load(fixtures, "solo");
  CHECK_THAT(error_of([&] {
               Transport::load(fixtures, "solo").configure({.options = {{"lod", true}}});
             }),
             Contains("did you mean 'loud'"));
  solo.configure({.options = {{"loud", true}}});
  CHECK(error_of([&] { solo.open(config_of(1), host); }) ==
        "1: transport solo, opening: the store forgot what it was told");
  host.suffix = std::string(5000, 'x');
  CHECK_THAT(error_of([&] { solo.open(config_of(1), host); }),
             Contains("key 'solo/j1' holds 5009 bytes, more than the 4096 there is room for"));
  CHECK_THAT(error_of([&] { solo.open(config_of(2), host); }), Contains("it serves one rank, and the job has 2"));
}

TEST_CASE("status codes become error codes", "[plugins]") {
  MapHost host;
  Transport solo = opened_solo(host);
  TransportGroup group = alone(solo);
  std::vector<float> data(4);
  TransportOp op = group.prepare({reduction(data, data)}, never);

  CHECK_FALSE(group.error());
  group.abort("the user asked for it");

  CHECK(group.error() == "the user asked for it");
  try {
    op.start(never);
    FAIL("an aborted group went on");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::aborted);
    CHECK(error.message() == "transport solo, group data, all_reduce (sum) of 4 f32 'weights': the user asked for it");
  }
}

TEST_CASE("starting and waiting allocate nothing", "[plugins]") {
  MapHost host;
  Transport solo = opened_solo(host);
  TransportGroup group = alone(solo);
  std::vector<float> send = {1, 2, 3};
  std::vector<float> recv(3);
  TransportOp op = group.prepare({reduction(send, recv)}, never);

  const std::uint64_t before = allocations();
  op.start(never);
  const bool tested = op.test();
  const bool waited = op.wait(never);
  const std::uint64_t after = allocations();

  CHECK(tested);
  CHECK(waited);
  CHECK(recv == send);
  CHECK(after == before);
}

TEST_CASE("an op that a transport lacks is a copy in a group of one member", "[plugins]") {
  MapHost host;
  Transport solo = opened_solo(host);
  TransportGroup group = alone(solo);
  std::vector<float> send = {1, 2, 3};
  std::vector<float> recv(3);
  sdk::OpSpec scatter = reduction(send, recv);
  scatter.opcode = SR_OP_SCATTER;
  TransportOp op = group.prepare({scatter}, never);

  op.start(never);

  CHECK(op.wait(never));
  CHECK(recv == send);
  group.abort("enough");
  CHECK_THAT(error_of([&] { op.start(never); }), Contains("enough"));
}

TEST_CASE("invalid ops and groups are refused before the plugin sees them", "[plugins]") {
  MapHost host;
  Transport closed = Transport::load(fixtures, "solo");
  CHECK_THAT(error_of([&] { static_cast<void>(alone(closed)); }), Contains("before it was opened"));
  Transport solo = opened_solo(host);
  CHECK_THAT(error_of([&] { static_cast<void>(solo.group({.rank = 1, .members = {0}, .name = "x"})); }),
             Contains("group x has 1 members, and this rank was said to be member 1"));
  TransportGroup group = alone(solo);
  std::vector<float> data(4);
  const auto refused = [&](const std::vector<sdk::OpSpec>& ops) {
    return error_of([&] { static_cast<void>(group.prepare(ops, never)); });
  };
  sdk::OpSpec op = reduction(data, data);

  CHECK_THAT(refused({}), Contains("1: transport solo, group data: nothing was given to prepare"));
  CHECK_THAT(refused({op, op}), Contains("only sends and receives can be"));
  op.send = sdk::Buffer{data.data(), 3 * sizeof(float)};
  CHECK_THAT(refused({op}), Contains("its send buffer has 12 bytes, expected 16"));
}

TEST_CASE("memory is deregistered before a transport is closed", "[plugins]") {
  MapHost host;
  std::vector<std::string> lines;
  {
    Transport wrap = Transport::load(
        fixtures, "wrap", [&](LogLevel, std::string_view, std::string_view text) { lines.emplace_back(text); });
    wrap.open(config_of(1), host);
    std::vector<float> data(4);
    CHECK(wrap.register_memory(data.data(), 16, -1) == 1);
  }
  CHECK(lines == std::vector<std::string>{"opened solo", "deregistered 1", "closed"});
}

TEST_CASE("a transport can open another one", "[plugins]") {
  MapHost host;
  Transport wrap = Transport::load(fixtures, "wrap", [](LogLevel, std::string_view, std::string_view) {});
  CHECK(wrap.options().at(0).names_transport);
  wrap.configure({.options_of = [](const std::string& name) {
    return name == "solo" ? OptionValues{{"loud", true}} : OptionValues{};
  }});
  wrap.open(config_of(1), host);

  CHECK(host.values.contains("solo/j1"));  // its option `loud` has reached it
  TransportGroup group = alone(wrap);
  CHECK_FALSE(group.error());
  group.abort("from outside");
  CHECK(group.error() == "inside: from outside");
  Transport missing = Transport::load(fixtures, "wrap", [](LogLevel, std::string_view, std::string_view) {});
  missing.configure({.options = {{"inner", "slo"}}});
  CHECK_THAT(error_of([&] { missing.open(config_of(1), host); }),
             Contains("transport wrap, opening") && Contains("'slo'") && Contains("solo"));
}

TEST_CASE("an option that the inner transport does not know is refused", "[plugins]") {
  MapHost host;
  Transport wrap = Transport::load(fixtures, "wrap", [](LogLevel, std::string_view, std::string_view) {});
  wrap.configure({.options_of = [](const std::string&) { return OptionValues{{"lod", true}}; }});
  CHECK_THAT(error_of([&] { wrap.open(config_of(1), host); }), Contains("did you mean 'loud'"));
}

TEST_CASE("transports that open each other in a circle are refused", "[plugins]") {
  Transport circle = Transport::load(fixtures, "circle");
  CHECK_THAT(error_of([&] { circle.configure({}); }),
             Contains("transport circle, configuring") && Contains("8 deep and more"));
}

TEST_CASE("wire_bytes comes from the transport", "[plugins]") {
  MapHost host;
  Transport solo = opened_solo(host);
  std::vector<float> data(6);

  CHECK(solo.wire_bytes() == 0);
  CHECK(solo.register_memory(data.data(), 24, -1) == 7);
  CHECK(solo.wire_bytes() == 24);
}

TEST_CASE("a transport that can sum in order is asked to", "[plugins]") {
  MapHost host;
  const Transport solo = opened_solo(host);
  std::vector<float> data(6);
  sdk::OpSpec op = reduction(data, data);
  op.send->kind = SR_MEMORY_PINNED;
  CHECK(solo.query(op, 3).flags == SR_OP_INFO_NATIVE);

  op.flags = SR_OP_FLAG_IN_ORDER;

  CHECK(solo.query(op, 3).flags == (SR_OP_INFO_NATIVE | SR_OP_INFO_ORDERED | SR_OP_INFO_STEPWISE));
  CHECK(solo.query(op, 3).scratch_bytes == 8);
}

TEST_CASE("a transport that rounds partial sums of 16-bit floats does not count as reducing in order", "[plugins]") {
  MapHost host;
  Transport solo = opened_solo(host);
  std::vector<float> data(6);
  sdk::OpSpec op = reduction(data, data);
  op.send->kind = SR_MEMORY_CUDA;
  op.recv->kind = SR_MEMORY_CUDA;
  op.flags = SR_OP_FLAG_IN_ORDER;
  CHECK((solo.query(op, 3).flags & SR_OP_INFO_ASYNC) == 0);  // what the transport itself says

  op.dtype = SR_DTYPE_BF16;

  CHECK_THAT(error_of([&] { static_cast<void>(solo.query(op, 3)); }), Contains("does not reduce in the order"));
  CHECK((solo.query(op, 2).flags & SR_OP_INFO_ASYNC) == 0);
  op.flags = 0;
  CHECK((solo.query(op, 3).flags & SR_OP_INFO_ROUNDED_ONCE) == 0);
}
