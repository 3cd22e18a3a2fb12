#include "core/bench/values.h"

#include <shardrun/sdk/op.hpp>
#include <shardrun/sdk/reduce.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/bench/specs.h"
#include "tests/support/catch.h"

using namespace shardrun::bench;
namespace sdk = shardrun::sdk;

namespace {

/// One member's arena: send, then recv.
struct Member {
  Layout layout;
  std::vector<std::byte> arena;
};

/// A case done by hand, as transport.h says it: what every member has in the end.
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

TEST_CASE("what a right op leaves has no wrong element, in any type, however many reduce", "[bench]") {
  for (const sdk::OpcodeTraits& traits : sdk::opcodes) {
    if (traits.opcode == SR_OP_RECV || traits.opcode == SR_OP_BARRIER) {
      continue;
    }
    for (const sdk::DtypeTraits& dtype : sdk::dtypes) {
      for (const sdk::ReductionTraits& reduction : sdk::reductions) {
        for (const std::uint32_t members : {2U, 3U, 300U}) {
          // More members than the smaller types have numbers: how sums of many are kept exact is alike for all ops.
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

TEST_CASE("each wrong element is counted, and so is a result of another round or of nothing", "[bench]") {
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
