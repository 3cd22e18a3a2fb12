#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/ring.h"

using namespace shardrun;
using namespace shardrun::test;
using partition::Collective;
using partition::Transfer;

namespace {

/// The bytes that each of three members sends.
std::vector<std::uint64_t> passed(const Transfer& transfer, const std::vector<RingMemory>& places) {
  std::vector<std::uint64_t> bytes;
  for (std::size_t member = 0; member < 3; ++member) {
    bytes.push_back(Ring(transfer, places[places.size() == 1 ? 0 : member], 3).passed_by(member));
  }
  return bytes;
}

}  // namespace

TEST_CASE("a ring's bytes are counted from the memory it sends and receives", "[runtime]") {
  // Blocks of 2, 2 and 1 elements: 10 less a member's own and less its neighbour's.
  CHECK(passed({.collective = Collective::all_reduce}, {{.send_bytes = 20, .recv_bytes = 20}}) ==
        std::vector<std::uint64_t>{24, 28, 28});
  CHECK(passed({.collective = Collective::all_reduce}, {{.send_bytes = 40, .recv_bytes = 40, .element_bytes = 8}}) ==
        std::vector<std::uint64_t>{48, 56, 56});
  CHECK(passed({.collective = Collective::reduce_scatter, .recv_counts = {5, 0, 2}},
               {{.send_bytes = 28, .recv_bytes = 20},
                {.send_bytes = 28, .recv_bytes = 0},
                {.send_bytes = 28, .recv_bytes = 8}}) == std::vector<std::uint64_t>{8, 28, 20});
  CHECK(passed({.collective = Collective::all_gather, .recv_counts = {5, 0, 2}},
               {{.send_bytes = 20, .recv_bytes = 28},
                {.send_bytes = 0, .recv_bytes = 28},
                {.send_bytes = 8, .recv_bytes = 28}}) == std::vector<std::uint64_t>{28, 20, 8});
  const Transfer exchange{.collective = Collective::all_to_all, .send_counts = {1, 2, 3}, .recv_counts = {2, 2, 2}};
  CHECK(passed(exchange, {{.send_bytes = 24, .recv_bytes = 24}}) == std::vector<std::uint64_t>{20, 16, 12});
}

TEST_CASE("blocks that do not fill a transfer's memory are refused", "[runtime]") {
  const auto error = [](const Transfer& transfer, const RingMemory& memory) {
    return error_of([&] { (void)Ring(transfer, memory, 2).passed_by(0); });
  };
  CHECK(error({.name = "x", .collective = Collective::all_reduce}, {.send_bytes = 8, .recv_bytes = 12}) ==
        "1: all_reduce of x: blocks of 8 bytes, but 12 bytes to receive");
  CHECK(error({.name = "x", .collective = Collective::all_gather, .recv_counts = {1, 2}},
              {.send_bytes = 8, .recv_bytes = 12}) == "1: all_gather of x: blocks of 4 bytes, but 8 bytes to send");
  CHECK(error({.name = "x", .collective = Collective::reduce_scatter, .recv_counts = {1, 2}},
              {.send_bytes = 16, .recv_bytes = 4}) ==
        "1: reduce_scatter of x: blocks of 12 bytes, but 16 bytes to send");
  CHECK(error({.name = "x", .collective = Collective::all_to_all, .send_counts = {1, 1}, .recv_counts = {1, 1, 1}},
              {.send_bytes = 8, .recv_bytes = 12}) == "1: all_to_all of x: 3 blocks for 2 members");
}
