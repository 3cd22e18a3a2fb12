// How transports fail, by their messages. Tests every transport found that moves host memory by itself, with ranks that
// are threads. The tests at the end are about a transport that moves no host memory.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/conformance/conformance.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;
using Catch::EndsWith;

namespace {

std::vector<std::string> transports_found() {
  const plugins::Directories directories = {SHARDRUN_BUILT_PLUGINS};
  std::vector<std::string> names = plugins::plugin_names(directories, plugins::PluginKind::transport);
  std::erase_if(names, [&](const std::string& name) {
    const sdk::Props props = plugins::Transport::load(directories, name).props();
    return props.has(SR_TRANSPORT_OWN_LAUNCHER) || !props.moves(SR_MEMORY_HOST);
  });
  for (const char* expected : {"gloo", "shm", "tcp"}) {
    INFO(expected);
    REQUIRE(std::ranges::count(names, expected) == 1);
  }
  return names;
}

/// How a transport words its errors. An empty text stands for any wording.
struct Wording {
  std::string connecting;     ///< precedes the reason why connecting a group failed
  std::string job_end;        ///< why an op ends if the job ends
  std::string others_differ;  ///< what member 2 of 3 is told if members 0 and 1 prepare different ops
  std::string late;           ///< how an op ends that waited for member 2 until its deadline
};

Wording wording_of(const std::string& transport) {
  const Wording gloo = {.connecting = "connecting the group 'all': ",
                        .job_end = "the job ends",
                        .others_differ = "members 0, 1 do not mean the same op",
                        .late = ": past the deadline, waiting for member 2 (rank 2)"};
  Wording tcp = gloo;
  tcp.job_end = "the group was aborted";
  tcp.late = ": receiving from member 2 (rank 2): the deadline passed";
  const Wording shm = {
      .connecting = "",
      .job_end = "group all was aborted",
      .others_differ = "member 0 (rank 0",
      .late = " is past its deadline, waiting for member 2 (rank 2, pid " + std::to_string(::getpid()) + ")"};
  // chaos passes on the errors of shm.
  const std::map<std::string, Wording> known = {{"chaos", shm}, {"gloo", gloo}, {"shm", shm}, {"tcp", tcp}};
  const auto found = known.find(transport);
  return found == known.end() ? Wording() : found->second;
}

/// Three members prepare an op that is not the same on all; then their group adds up ones. `errors`: what each member
/// is told. `sums`: the sum on each member.
struct Refusals {
  std::array<std::string, 3> errors;
  std::array<float, 3> sums = {};
};

template <class RequestOfRank>
Refusals refusals(const std::string& transport, RequestOfRank request_of_rank) {
  Refusals told;
  run_ranks(transport, 3, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(100'000, 1.0F);
    std::vector<float> received(10);
    const sdk::OpSpec request = request_of_rank(rank.rank(), data, received);
    told.errors[rank.rank()] = error_of([&] { (void)group.prepare({request}, after(30)); });
    auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 2, 100'000, data)}, after(30));
    run(op);
    told.sums[rank.rank()] = data.back();
    rank.meet("end");
  });
  return told;
}

}  // namespace

TEST_CASE("members that prepare different collectives are told both, and continue", "[conformance]") {
  for (const std::string& transport : transports_found()) {
    INFO(transport);
    const Refusals told = refusals(transport, [](std::uint32_t rank, std::vector<float>& data, std::vector<float>&) {
      return request_of(SR_OP_ALL_REDUCE, 1, rank == 2 ? 70'000 : 100'000, data);
    });
    for (const std::string& error : told.errors) {
      CHECK_THAT(error, Contains("all_reduce (sum) of 100000 f32") && Contains("all_reduce (sum) of 70000 f32"));
    }
    CHECK(told.sums == std::array<float, 3>{3, 3, 3});
  }
}

TEST_CASE("a mismatch is reported to the member that agrees with both, too", "[conformance]") {
  for (const std::string& transport : transports_found()) {
    INFO(transport);
    const Refusals told =
        refusals(transport, [](std::uint32_t rank, std::vector<float>& data, std::vector<float>& received) {
          sdk::OpSpec request = request_of(SR_OP_ALL_TO_ALLV, 1, 0, data);
          request.recv = buffer_of(received);
          request.send_counts = request.recv_counts = {1, 1, 1};
          request.send_counts[1] = rank == 0 ? 2 : 1;
          return request;
        });
    CHECK_THAT(told.errors[0],
               Contains("member 1 has all_to_allv") && Contains("exchange 2 and 1 elements on the one side"));
    CHECK_THAT(told.errors[1], Contains("member 0 has all_to_allv") && Contains("1 and 2 on the other"));
    CHECK_THAT(told.errors[2], Contains(wording_of(transport).others_differ) && Contains("do not mean the same op"));
    CHECK(told.sums == std::array<float, 3>{3, 3, 3});
  }
}

TEST_CASE("the end of the job ends a wait", "[conformance]") {
  for (const std::string& transport : transports_found()) {
    for (const std::uint32_t flags : {0U, SR_OP_FLAG_BLOCKING}) {
      INFO(transport << ", flags " << flags);
      std::string error = "nothing";
      run_ranks(transport, 2, [&](Rank& rank) {
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
      CHECK(error != "nothing");
      CHECK_THAT(error, Contains(wording_of(transport).job_end));
    }
  }
}

TEST_CASE("the end of the job ends connecting to a rank that never comes", "[conformance]") {
  for (const std::string& transport : transports_found()) {
    for (const std::uint32_t self : {0U, 1U}) {
      INFO(transport << ", rank " << self);
      SharedHost host;
      Rank rank(host, transport, self, 2);
      std::thread other([&] { host.abort(); });
      CHECK_THAT(error_of([&] { (void)rank.group(1, 1e6); }), Contains("the job ends"));
      other.join();
    }
  }
}

TEST_CASE("connecting to a rank that never comes times out and names it", "[conformance]") {
  for (const std::string& transport : transports_found()) {
    for (const std::uint32_t self : {0U, 1U}) {
      INFO(transport << ", rank " << self);
      SharedHost host;
      Rank rank(host, transport, self, 2);
      const std::string other = std::to_string(1 - self);
      CHECK_THAT(error_of([&] { (void)rank.group(1, 0.05); }),
                 EndsWith(wording_of(transport).connecting + "past the deadline, waiting for member " + other +
                          " (rank " + other + ")"));
    }
  }
}

TEST_CASE("a timeout names the member that was waited for", "[conformance]") {
  for (const std::string& transport : transports_found()) {
    for (const std::uint32_t opcode : {SR_OP_ALL_REDUCE, SR_OP_RECV}) {
      INFO(transport << ", opcode " << opcode);
      // If rank 1 takes part only after rank 0 has stopped waiting, rank 0 names rank 1.
      std::string error;
      for (double patience = 0.05; patience < 30; patience *= 4) {
        run_ranks(transport, 3, [&](Rank& rank) {
          auto group = rank.group();
          std::vector<float> data(10);
          std::vector<plugins::TransportOp> ops;
          if (rank.rank() == 0 || opcode == SR_OP_ALL_REDUCE) {
            ops.push_back(group.prepare({request_of(opcode, 1, data.size(), data, 2)}, after(30)));
          }
          rank.meet("all is prepared");
          if (rank.rank() == 0) {
            ops[0].start(after(patience));
            error = error_of([&] { finish(ops[0]); });
            rank.host().abort();  // ends the wait of rank 1
          } else if (rank.rank() == 1 && opcode == SR_OP_ALL_REDUCE) {
            (void)error_of([&] { run(ops[0]); });
          }
          rank.meet("end");
        });
        if (error.find("member 1 (rank 1") == std::string::npos) {
          break;
        }
      }
      CHECK_THAT(error, EndsWith(wording_of(transport).late));
    }
  }
}

namespace {

std::vector<conformance::Finding> check_distant(const std::string& crashes) {
  return conformance::check_plugin({SHARDRUN_DISTANT}, plugins::PluginKind::transport, "distant",
                                   {.member_command = {SHARDRUN_CONFORMANCE_PROGRAM, "--member"},
                                    .settings = {"crashes=" + crashes},
                                    .silence_s = 60});
}

}  // namespace

TEST_CASE("a transport for other memory is skipped, and opens on all ranks before", "[conformance]") {
  const std::vector<conformance::Finding> findings = check_distant("false");

  REQUIRE(findings.size() == 1);
  CHECK(findings[0].is_skipped);
  CHECK(findings[0].problem == std::string(conformance::only_host_memory) + "; it opens here");
}

TEST_CASE("a transport for other memory that crashes while it opens is not skipped", "[conformance]") {
  const std::vector<conformance::Finding> findings = check_distant("true");

  REQUIRE(findings.size() == 1);
  CHECK_FALSE(findings[0].is_skipped);
  CHECK_THAT(findings[0].problem, Contains("rank 0: was ended by signal 6"));
}
