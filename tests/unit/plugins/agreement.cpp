#include <shardrun/sdk/agreement.hpp>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun::sdk;
using Catch::Contains;

namespace {

/// What each member finds once the messages of all rounds have gone where they belong; empty: nothing.
std::vector<std::string> differences(const std::vector<OpSpec>& ops) {
  const auto n = static_cast<std::uint32_t>(ops.size());
  std::vector<Agreement> members;
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    members.emplace_back(ops[rank], rank, n);
  }
  for (std::uint32_t round = 0; round < Agreement::rounds; ++round) {
    for (std::uint32_t from = 0; from < n; ++from) {
      for (std::uint32_t to = 0; to < n; ++to) {
        if (from != to) {
          std::memcpy(members[to].incoming(round, from), members[from].outgoing(round, to), members[from].bytes(round));
        }
      }
    }
    for (Agreement& member : members) {
      member.conclude(round);
    }
  }
  std::vector<std::string> found;
  for (const Agreement& member : members) {
    found.push_back(member.difference().value_or(""));
  }
  return found;
}

std::vector<OpSpec> exchanges(std::uint32_t n) {
  return std::vector<OpSpec>(n, {.opcode = SR_OP_ALL_TO_ALLV,
                                 .dtype = SR_DTYPE_F32,
                                 .id = 9,
                                 .send_counts = std::vector<std::uint64_t>(n, 1),
                                 .recv_counts = std::vector<std::uint64_t>(n, 1)});
}

}  // namespace

TEST_CASE("members that mean the same op find nothing", "[sdk]") {
  CHECK(differences(exchanges(1)) == std::vector<std::string>(1));
  CHECK(differences(exchanges(4)) == std::vector<std::string>(4));
}

TEST_CASE("members whose own exchanges are alike hear that others disagree", "[sdk]") {
  std::vector<OpSpec> ops = exchanges(4);
  ops[1].send_counts[3] = 2;

  const std::vector<std::string> found = differences(ops);

  for (const std::uint32_t involved : {1U, 3U}) {
    CHECK_THAT(found[involved], Contains("member 1 has all_to_allv of 4 f32 (id 9)") &&
                                    Contains("member 3 has all_to_allv") && Contains("where they exchange"));
  }
  for (const std::uint32_t other : {0U, 2U}) {
    CHECK(found[other] ==
          "members 1, 3 do not mean the same op; member " + std::to_string(other) + " has all_to_allv of 4 f32 (id 9)");
  }
}

TEST_CASE("an op that one member alone means is an error on all", "[sdk]") {
  std::vector<OpSpec> ops = exchanges(3);
  ops[2] = {.opcode = SR_OP_ALL_GATHER, .dtype = SR_DTYPE_F32, .id = 9, .count = 1};

  for (const std::string& each : differences(ops)) {
    CHECK_THAT(each, Contains("all_to_allv") && Contains("all_gather of 1 f32"));
  }
}
