#include <shardrun/sdk/transport/agreement.hpp>
#include <shardrun/sdk/transport/op.hpp>
#include <shardrun/sdk/transport/validate.hpp>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun::sdk;
using Catch::Contains;

namespace {

float memory[64];

Buffer floats(std::size_t offset, std::size_t count) {
  return {.data = memory + offset, .bytes = count * sizeof(float)};
}

OpSpec sum(std::uint64_t count) {
  return {.opcode = SR_OP_ALL_REDUCE,
          .dtype = SR_DTYPE_F32,
          .reduction = SR_REDUCE_SUM,
          .id = 9,
          .count = count,
          .send = floats(0, count),
          .recv = floats(32, count),
          .label = "w"};
}

OpSpec gather_all(std::vector<std::uint64_t> counts, const Buffer& send, const Buffer& recv) {
  return {
      .opcode = SR_OP_ALL_GATHERV, .dtype = SR_DTYPE_F32, .recv_counts = std::move(counts), .send = send, .recv = recv};
}

/// The error that member 1 of 3 gets for the op; "nothing" if the op is accepted.
std::string refusal(const OpSpec& op) {
  try {
    validate(op, 1, 3);
  } catch (const TransportError& error) {
    return error.status() == SR_INVALID ? error.what() : "another status";
  }
  return "nothing";
}

std::string changed(OpSpec op, const std::function<void(OpSpec&)>& change) {
  change(op);
  return refusal(op);
}

}  // namespace

TEST_CASE("an invalid op is refused, and the error says why", "[sdk]") {
  CHECK(refusal(sum(8)) == "nothing");
  CHECK(changed(sum(8), [](OpSpec& op) { op.opcode = 15; }) ==
        "op 15 of 8 f32 'w': this opcode is not known; those from 1 to 14 are");
  CHECK_THAT(changed(sum(8), [](OpSpec& op) { op.dtype = 0; }), Contains("dtype 0 is not known"));
  CHECK_THAT(changed(sum(8), [](OpSpec& op) { op.reduction = 5; }), Contains("reduction 5 is not known"));
  CHECK(changed(sum(8), [](OpSpec& op) {
          op.opcode = SR_OP_SEND;
          op.peer = 3;
        }) == "send of 8 f32 to member 3 'w': its group has members 0 to 2");
  CHECK_THAT(changed(sum(8),
                     [](OpSpec& op) {
                       op.opcode = SR_OP_RECV;
                       op.peer = 1;
                     }),
             Contains("a member cannot send to itself"));
  CHECK(changed(sum(8), [](OpSpec& op) { op.recv->bytes = 31; }) ==
        "all_reduce (sum) of 8 f32 'w': its recv buffer has 31 bytes, expected 32");
  CHECK_THAT(changed(sum(8), [](OpSpec& op) { op.send.reset(); }), Contains("it needs a send buffer of 32 bytes"));
  CHECK_THAT(changed(sum(8), [](OpSpec& op) { op.recv->data = nullptr; }), Contains("needs a recv buffer"));
  CHECK_THAT(changed(sum(8), [](OpSpec& op) { op.count = std::numeric_limits<std::uint64_t>::max() / 16; }),
             Contains("no memory can hold so many elements"));
  CHECK_THAT(refusal(gather_all({1, 2}, floats(0, 2), floats(8, 3))),
             Contains("recv_counts has 2 entries, expected one for each of 3 members"));
  CHECK_THAT(refusal(gather_all({1, 2, UINT64_MAX / 9}, floats(0, 2), floats(8, 3))),
             Contains("which no memory can hold"));
}

TEST_CASE("buffers may only overlap in place", "[sdk]") {
  CHECK(changed(sum(8), [](OpSpec& op) { op.recv = op.send; }) == "nothing");
  CHECK_THAT(changed(sum(8), [](OpSpec& op) { op.recv = floats(7, 8); }), Contains("overlap"));
  CHECK(changed(sum(8), [](OpSpec& op) { op.recv = floats(8, 8); }) == "nothing");
  CHECK(refusal(gather_all({4, 2, 3}, floats(14, 2), floats(10, 9))) == "nothing");
  CHECK_THAT(refusal(gather_all({4, 2, 3}, floats(13, 2), floats(10, 9))), Contains("overlap"));
  CHECK(is_in_place(gather_all({4, 2, 3}, floats(14, 2), floats(10, 9)), 1, 3));
  CHECK_FALSE(is_in_place(gather_all({4, 2, 3}, floats(20, 2), floats(10, 9)), 1, 3));
  OpSpec scatter = sum(2);
  scatter.opcode = SR_OP_REDUCE_SCATTER;
  scatter.send = floats(0, 6);
  scatter.recv = floats(2, 2);
  CHECK(refusal(scatter) == "nothing");
  scatter.recv = floats(0, 2);
  CHECK_THAT(refusal(scatter), Contains("overlap"));
  OpSpec exchange = sum(2);
  exchange.opcode = SR_OP_ALL_TO_ALL;
  exchange.send = exchange.recv = floats(0, 6);
  CHECK_THAT(refusal(exchange), Contains("overlap"));
}

TEST_CASE("a member that sends or receives nothing needs no buffer", "[sdk]") {
  OpSpec broadcast = sum(4);
  broadcast.opcode = SR_OP_BROADCAST;
  broadcast.peer = 0;
  broadcast.send.reset();
  CHECK(refusal(broadcast) == "nothing");
  broadcast.peer = 1;
  CHECK_THAT(refusal(broadcast), Contains("needs a send buffer"));
  CHECK(refusal({.opcode = SR_OP_BARRIER}) == "nothing");
  OpSpec nothing = sum(0);
  nothing.send.reset();
  nothing.recv.reset();
  CHECK(refusal(nothing) == "nothing");
}

TEST_CASE("members that disagree on an op hear of both ops", "[sdk]") {
  const OpSpec mine = sum(8);
  CHECK_FALSE(mismatch(mine, 0, 1, claim_of(mine, 1, 0)));

  const auto differs = [&](const std::function<void(OpSpec&)>& change) {
    OpSpec theirs = mine;
    change(theirs);
    return mismatch(mine, 0, 1, claim_of(theirs, 1, 0)).has_value();
  };
  CHECK(differs([](OpSpec& op) { op.opcode = SR_OP_REDUCE_SCATTER; }));
  CHECK(differs([](OpSpec& op) { op.dtype = SR_DTYPE_I32; }));
  CHECK(differs([](OpSpec& op) { op.reduction = SR_REDUCE_MAX; }));
  CHECK(differs([](OpSpec& op) { op.id = 10; }));
  CHECK(differs([](OpSpec& op) { op.count = 7; }));
  CHECK_FALSE(differs([](OpSpec& op) { op.peer = 2; }));  // an all_reduce has no root
  CHECK_FALSE(differs([](OpSpec& op) { op.label = "v"; }));
  OpSpec theirs = mine;
  theirs.count = 7;
  CHECK(*mismatch(mine, 0, 1, claim_of(theirs, 1, 0)) ==
        "members do not mean the same op: member 0 has all_reduce (sum) of 8 f32 'w' (id 9), member 1 has all_reduce "
        "(sum) of 7 f32 'w' (id 9)");
}

TEST_CASE("members compare all counts they share, and the counts that the two exchange", "[sdk]") {
  const OpSpec gather = gather_all({1, 2, 3}, floats(0, 3), floats(8, 6));
  CHECK_FALSE(mismatch(gather, 0, 1, claim_of(gather, 1, 0)));
  CHECK_THAT(*mismatch(gather, 0, 1, claim_of(gather_all({1, 2, 4}, {}, {}), 1, 0)), Contains("with other counts"));

  OpSpec first = {.opcode = SR_OP_ALL_TO_ALLV, .dtype = SR_DTYPE_F32, .send_counts = {1, 2}, .recv_counts = {1, 5}};
  OpSpec second = {.opcode = SR_OP_ALL_TO_ALLV, .dtype = SR_DTYPE_F32, .send_counts = {5, 7}, .recv_counts = {2, 7}};
  CHECK_FALSE(mismatch(first, 0, 1, claim_of(second, 1, 0)));
  second.send_counts[0] = 4;
  CHECK_THAT(*mismatch(first, 0, 1, claim_of(second, 1, 0)),
             Contains("exchange 2 and 5 elements on the one side, 2 and 4 on the other"));
}

namespace {

/// The differences that each member finds once all messages of all rounds have arrived; empty if it finds none.
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

TEST_CASE("members with the same op find no difference", "[sdk]") {
  CHECK(differences(exchanges(1)) == std::vector<std::string>(1));
  CHECK(differences(exchanges(4)) == std::vector<std::string>(4));
}

TEST_CASE("members hear that two others disagree, even if their own exchanges match", "[sdk]") {
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

TEST_CASE("an op that only one member started is an error on all", "[sdk]") {
  std::vector<OpSpec> ops = exchanges(3);
  ops[2] = {.opcode = SR_OP_ALL_GATHER, .dtype = SR_DTYPE_F32, .id = 9, .count = 1};

  for (const std::string& each : differences(ops)) {
    CHECK_THAT(each, Contains("all_to_allv") && Contains("all_gather of 1 f32"));
  }
}
