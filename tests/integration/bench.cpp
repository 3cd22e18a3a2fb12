#include <algorithm>
#include <set>
#include <string>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

Ended bench(std::vector<std::string> words) {
  const TemporaryFolder folder;
  words.insert(words.begin(), "bench");
  return run_program(folder.path(), words);
}

boost::json::object measured(std::vector<std::string> words) {
  words.insert(words.end(), {"--json", "--iters", "3", "--warmup", "1"});
  const Ended ended = bench(words);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return boost::json::parse(ended.out).as_object();
}

std::uint64_t wrong_in(const boost::json::object& result) {
  std::uint64_t wrong = 0;
  for (const boost::json::value& row : result.at("rows").as_array()) {
    wrong += row.at("wrong").to_number<std::uint64_t>();
  }
  return wrong;
}

}  // namespace

TEST_CASE("every op of every transport has the right result, and its row has times", "[bench]") {
  for (const std::string& transport : installed("transport")) {
    CAPTURE(transport);
    for (const char* ranks : {"2", "3"}) {
      const boost::json::object result =
          measured({"--transport", transport, "--ranks", ranks, "--op", "all", "--sizes", "4,1000,200K"});
      CHECK(wrong_in(result) == 0);
      std::set<std::string> ops;
      for (const boost::json::value& row : result.at("rows").as_array()) {
        ops.insert(row.at("op").as_string().c_str());
        CHECK(row.at("ranks").as_int64() == std::stoi(ranks));
        CHECK(row.at("p99_us").as_double() >= row.at("time_us").as_double());
        CHECK(row.at("time_us").as_double() > 0);
      }
      CHECK(ops == std::set<std::string>{"all_gather", "all_gatherv", "all_reduce", "all_to_all", "all_to_allv",
                                         "barrier", "broadcast", "gather", "reduce", "reduce_scatter",
                                         "reduce_scatterv", "scatter", "send_recv"});
    }
  }
}

TEST_CASE("sums that gloo cuts into pieces arrive whole", "[bench]") {
  for (const char* ranks : {"2", "4"}) {
    CHECK(wrong_in(measured({"--transport", "gloo", "--set", "transport.gloo.chunk=8", "--ranks", ranks, "--op", "all",
                             "--sizes", "70K,300001"})) == 0);
    CHECK(wrong_in(measured({"--transport", "gloo", "--set", "transport.gloo.chunk=8", "--ranks", ranks, "--op",
                             "all_reduce,reduce_scatterv", "--dtype", "all", "--sizes", "300001"})) == 0);
  }
}

TEST_CASE("every element type and reduction is compared exactly, in place and out of place", "[bench]") {
  const boost::json::object result = measured(
      {"--ranks", "3", "--op", "all_reduce,reduce_scatterv", "--dtype", "all", "--redop", "all", "--sizes", "3000"});
  CHECK(result.at("rows").as_array().size() == 2 * 10 * 4 * 2);
  CHECK(wrong_in(result) == 0);
}

TEST_CASE("JSON rows have every field, and the machine's ceilings are listed beside them", "[bench]") {
  const boost::json::object result = measured({"--sizes", "4096-65536", "--factor", "16", "--out-of-place"});
  CHECK(result.at("rows").as_array().size() == 2);
  const boost::json::object& row = result.at("rows").as_array().at(1).as_object();
  CHECK(row.at("op").as_string() == "all_reduce");
  CHECK(row.at("bytes").as_int64() == 65536);
  CHECK(row.at("count").as_int64() == 16384);
  CHECK(row.at("dtype").as_string() == "f32");
  CHECK(row.at("redop").as_string() == "sum");
  CHECK_FALSE(row.at("in_place").as_bool());
  CHECK(row.at("algbw").as_double() == Approx(65536 / row.at("time_us").as_double() / 1e3));
  CHECK(row.at("busbw").as_double() == Approx(row.at("algbw").as_double()));
  for (const char* ceiling : {"memcpy", "reduction", "socket"}) {
    CHECK(result.at("ceilings").at(ceiling).as_array().at(0).at("bandwidth").as_double() > 0);
  }
}

TEST_CASE("a table has a line for each row, and names the machine's ceilings", "[bench]") {
  const Ended ended = bench({"--op", "broadcast,barrier", "--sizes", "1K", "--iters", "3"});
  CHECK(ended.code == 0);
  CHECK(ended.err.empty());
  CHECK_THAT(ended.out, Contains("# ceilings of this machine") && Contains("memcpy of 1.00 MiB") &&
                            Contains("TCP over the loopback") && Contains("#wrong\nbroadcast ") &&
                            Contains("\nbarrier "));
}

TEST_CASE("one rank is enough for ops that need no peer", "[bench]") {
  const boost::json::object result = measured({"--ranks", "1", "--op", "all", "--sizes", "100"});
  CHECK(wrong_in(result) == 0);
  CHECK_FALSE(result.at("ceilings").as_object().contains("socket"));
}

TEST_CASE("a third party's transport is measured, and wrong data ends bench with code 1", "[bench]") {
  const std::vector<std::string> words = {"--transport", "corrupting",
                                          "--plugins",   SHARDRUN_OUTSIDE_STRATEGIES,
                                          "--op",        "all_reduce,all_gather",
                                          "--sizes",     "64,40000",
                                          "--iters",     "2",
                                          "--json"};
  const auto with = [&](const std::string& setting) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--set", "transport.corrupting." + setting});
    return bench(all);
  };
  const Ended corrupted = with("member=1");
  CHECK(corrupted.code == 1);
  // One element is wrong in each of the two runs that are checked, in each of the four rows of all_reduce.
  CHECK(wrong_in(boost::json::parse(corrupted.out).as_object()) == 8);
  CHECK_THAT(corrupted.err, Contains("shardrun: 8 elements are wrong"));

  const Ended sound = with("member=-1");
  CHECK(sound.code == 0);
  CHECK(wrong_in(boost::json::parse(sound.out).as_object()) == 0);
}

TEST_CASE("settings that cannot be measured are refused before a process starts", "[bench]") {
  const auto refused = [](const std::vector<std::string>& words) {
    const Ended ended = bench(words);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    return ended.err;
  };
  CHECK_THAT(refused({"--op", "all_redcue"}), Contains("--op: there is no 'all_redcue' (did you mean 'all_reduce'?)"));
  CHECK_THAT(refused({"--dtype", "f23"}), Contains("did you mean"));
  CHECK_THAT(refused({"--redop", ""}), Contains("--redop: there is no ''"));
  CHECK_THAT(refused({"--op", "broadcast,barrier", "--redop", "max"}),
             Contains("--redop: none of the ops (broadcast,barrier) reduces anything"));
  CHECK_THAT(refused({"--sizes", "64M-8"}), Contains("--sizes: '64M-8' ends before it begins"));
  CHECK_THAT(refused({"--sizes", "0"}), Contains("'0' is no size"));
  CHECK_THAT(refused({"--sizes", "4X"}), Contains("'4X' has no such unit"));
  CHECK_THAT(refused({"--sizes", "1024G"}), Contains("this machine has"));
  CHECK_THAT(refused({"--factor", "1"}), Contains("--factor: expected a number from 2"));
  CHECK_THAT(refused({"--ranks", "0"}), Contains("--ranks: expected a number from 1"));
  CHECK_THAT(refused({"--ranks", "1", "--op", "send_recv"}), Contains("needs at least two --ranks"));
  CHECK_THAT(refused({"--iters", "0"}), Contains("--iters: expected a number from 1"));
  CHECK_THAT(refused({"--transport", "smh"}), Contains("smh"));
  CHECK_THAT(refused({"--set", "transport.other.key=1"}), Contains("--set transport.other.key=1: expected transport."));
  CHECK_THAT(refused({"--transport", "corrupting", "--plugins", SHARDRUN_OUTSIDE_STRATEGIES, "--set",
                      "transport.corrupting.membr=1"}),
             Contains("did you mean 'member'?"));
  CHECK_THAT(refused({"job.ini"}), Contains("did not expect 'job.ini'"));
}
