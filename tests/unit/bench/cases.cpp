#include <shardrun/sdk/transport/op.hpp>
#include <shardrun/sdk/transport/reduce.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/bench/cases.h"
#include "tests/support/catch.h"

using namespace shardrun::bench;

namespace sdk = shardrun::sdk;

namespace {

Settings settings_of(std::vector<std::uint32_t> opcodes, std::vector<std::uint64_t> sizes, int ranks) {
  return {.ranks = ranks,
          .opcodes = std::move(opcodes),
          .sizes = std::move(sizes),
          .dtypes = {SR_DTYPE_F32},
          .reductions = {SR_REDUCE_SUM}};
}

std::vector<Case> ops_of(const Settings& settings) {
  std::vector<Case> cases = cases_of(settings);
  std::erase_if(cases, [](const Case& each) { return each.what != What::op; });
  return cases;
}

}  // namespace

TEST_CASE("a size is the size of the larger buffer, in whole blocks", "[bench]") {
  const std::vector<Case> cases = ops_of(settings_of({SR_OP_ALL_GATHER, SR_OP_BROADCAST}, {1000}, 3));
  REQUIRE(cases.size() == 4);
  CHECK(cases[0].count == 83);
  CHECK(cases[0].bytes == 996);
  CHECK(cases[2].count == 250);
  CHECK(cases[2].bytes == 1000);
  CHECK(ops_of(settings_of({SR_OP_ALL_TO_ALL}, {1}, 4)).at(0).bytes == 16);
}

TEST_CASE("ops that can be in place are measured both ways, unless one is asked for", "[bench]") {
  Settings settings = settings_of({SR_OP_ALL_REDUCE, SR_OP_ALL_TO_ALL, SR_OP_BARRIER}, {8, 64}, 2);
  CHECK(ops_of(settings).size() == 4 + 2 + 1);
  settings.places = Placing::in_place;
  const std::vector<Case> in_place = ops_of(settings);
  CHECK(in_place.size() == 2 + 2 + 1);
  CHECK(std::ranges::count(in_place, true, &Case::in_place) == 2);
}

TEST_CASE("short ops are done more often, unless a number is asked for", "[bench]") {
  Settings settings = settings_of({SR_OP_ALL_TO_ALL}, {8, std::uint64_t{1} << 30U}, 2);
  CHECK(ops_of(settings)[0].iterations == 1000);
  CHECK(ops_of(settings)[1].iterations == 20);
  settings.iterations = 7;
  settings.warm_up = 0;
  CHECK(ops_of(settings)[0].iterations == 7);
  CHECK(ops_of(settings)[0].warm_up == 0);
}

TEST_CASE("what members send fits what others receive, and V forms have uneven blocks", "[bench]") {
  for (const sdk::OpcodeTraits& traits : sdk::opcodes) {
    if (!traits.has_recv_counts) {
      continue;
    }
    CAPTURE(traits.name);
    for (const std::uint32_t members : {1U, 2U, 5U}) {
      const Case each{.opcode = traits.opcode, .dtype = SR_DTYPE_F32, .reduction = SR_REDUCE_SUM, .count = 100};
      for (std::uint32_t a = 0; a < members; ++a) {
        const sdk::OpSpec op = specs_of(each, members, a).at(0);
        CHECK(sdk::detail::sum(op.recv_counts) == 100 * members);
        CHECK((members == 1 || op.recv_counts[0] != op.recv_counts[1]));
        for (std::uint32_t b = 0; b < members; ++b) {
          const sdk::OpSpec other = specs_of(each, members, b).at(0);
          if (traits.has_send_counts) {
            CHECK(op.send_counts[b] == other.recv_counts[a]);
          } else {
            CHECK(op.recv_counts == other.recv_counts);
          }
        }
      }
    }
  }
}

TEST_CASE("sends go round in a ring, each with an id of its own", "[bench]") {
  const Case each{.opcode = SR_OP_SEND, .dtype = SR_DTYPE_F32, .count = 4};
  const auto requests = specs_of(each, 3, 1, 10);
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].peer == 2);
  CHECK(requests[0].id == 11);
  CHECK(requests[1].peer == 0);
  CHECK(requests[1].id == 10);
}

namespace {

/// One member's arena: send, then recv.
struct Member {
  ArenaLayout layout;
  std::vector<std::byte> arena;
};

/// Performs a case by hand, as transport.h describes it. Returns what every member has in the end.
std::vector<Member> done(const Case& each, std::uint32_t members, std::uint32_t round) {
  std::vector<Member> all(members);
  const std::uint64_t element = sdk::dtype_size(each.dtype);
  for (std::uint32_t rank = 0; rank < members; ++rank) {
    Member& member = all[rank];
    for (const sdk::OpSpec& spec : specs_of(each, members, rank)) {
      member.layout.send_bytes += sdk::send_elements(spec, rank, members) * element;
      member.layout.recv_bytes += sdk::recv_elements(spec, rank, members) * element;
    }
    member.layout.recv = (member.layout.send_bytes + 63) / 64 * 64;
    member.arena.resize(member.layout.recv + member.layout.recv_bytes);
    fill(each, members, rank, round, member.layout, member.arena.data());
  }
  const bool reduces = sdk::find_opcode(each.opcode)->reduces;
  for (std::uint32_t rank = 0; rank < members; ++rank) {
    const sdk::OpSpec own = specs_of(each, members, rank).back();
    for (std::uint32_t from = 0; from < members; ++from) {
      const sdk::Block out = sdk::send_block(specs_of(each, members, from).front(), from, rank);
      const sdk::Block in = sdk::recv_block(own, rank, from);
      std::byte* const to = all[rank].arena.data() + all[rank].layout.recv + in.offset * element;
      const std::byte* const source = all[from].arena.data() + out.offset * element;
      if (in.count == 0) {
        continue;
      }
      if (reduces && from != 0) {
        sdk::reduce(each.dtype, each.reduction, to, source, in.count);
      } else {
        std::memcpy(to, source, in.count * element);
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("a right result counts no wrong element, in any type, with many members too", "[bench]") {
  for (const sdk::OpcodeTraits& traits : sdk::opcodes) {
    if (traits.opcode == SR_OP_RECV || traits.opcode == SR_OP_BARRIER) {
      continue;
    }
    for (const sdk::DtypeTraits& dtype : sdk::dtypes) {
      for (const sdk::ReductionTraits& reduction : sdk::reductions) {
        for (const std::uint32_t members : {2U, 3U, 300U}) {
          // More members than the smaller types have numbers. All ops keep such sums exact in the same way, so one op
          // is enough.
          if (members == 300 && (traits.opcode != SR_OP_ALL_REDUCE || reduction.reduction != SR_REDUCE_SUM)) {
            continue;
          }
          CAPTURE(traits.name, dtype.name, reduction.name, members);
          const Case each{.opcode = traits.opcode,
                          .dtype = dtype.dtype,
                          .reduction = traits.reduces ? reduction.reduction : 0,
                          .count = members == 300 ? 5U : 40U};
          const std::vector<Member> all = done(each, members, 1);
          std::uint64_t wrong = 0;
          for (std::uint32_t rank = 0; rank < members; ++rank) {
            wrong += count_wrong(each, members, rank, 1, all[rank].layout, all[rank].arena.data());
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("each wrong element is counted, and so is the result of another round or none at all", "[bench]") {
  const Case each{.opcode = SR_OP_ALL_REDUCE, .dtype = SR_DTYPE_F32, .reduction = SR_REDUCE_SUM, .count = 1000};
  Member member = done(each, 2, 0)[1];
  auto* const result = reinterpret_cast<float*>(member.arena.data() + member.layout.recv);
  CHECK(count_wrong(each, 2, 1, 1, member.layout, member.arena.data()) > 900);
  result[0] += 1;
  result[999] = -result[999] - 1;
  CHECK(count_wrong(each, 2, 1, 0, member.layout, member.arena.data()) == 2);
  fill(each, 2, 1, 0, member.layout, member.arena.data());
  CHECK(count_wrong(each, 2, 1, 0, member.layout, member.arena.data()) == 1000);
}
