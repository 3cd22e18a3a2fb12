#include "core/base/process.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace json = boost::json;

namespace {

Ended show(const JobFolder& job, const std::string& tensor, const std::vector<std::string>& overrides,
           const std::vector<std::string>& words = {}) {
  std::vector<std::string> all = {"show-sharding", "job.ini", tensor};
  all.insert(all.end(), words.begin(), words.end());
  return run_program(job.path(), with_settings(all, overrides));
}

json::array tensors(const JobFolder& job, const std::string& tensor, const std::vector<std::string>& overrides) {
  const Ended ended = show(job, tensor, overrides, {"--json"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return json::parse(ended.out).at("tensors").as_array();
}

}  // namespace

TEST_CASE("a tensor's parts are drawn and listed", "[program]") {
  const JobFolder job;
  const Ended ended = show(job, "layer.0/mlp/up/weights", {"job.strategy=tp", "job.ranks=3"});
  INFO(ended.err);
  CHECK(ended.code == 0);
  const std::string place = shardrun::host_name() + " cpu\n";
  std::string expected = R"(layer.0/mlp/up/weights
parameter f32[embed 16, mlp 64], 4.00 KiB
mesh      model 3 = 3 ranks
placement [- | model]

embed ↓  mlp →
            0:22            22:43           43:64
     ┌────────────────┬───────────────┬───────────────┐
     │                │               │               │
0:16 │       0        │       1       │       2       │
     │                │               │               │
     └────────────────┴───────────────┴───────────────┘

rank  index ranges   shape         elements           bytes  host and device
)";
  expected += "   0  [0:16, 0:22]   [16, 22]           352            1408  " + place;
  expected += "   1  [0:16, 22:43]  [16, 21]           336            1344  " + place;
  expected += "   2  [0:16, 43:64]  [16, 21]           336            1344  " + place;
  CHECK(ended.out == expected);
  CHECK(ended.err.empty());
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}

TEST_CASE("host and device of a part are those of a run, or else of this process's launcher", "[program]") {
  const JobFolder job;
  const std::vector<std::string> how = {"job.strategy=dp", "job.ranks=2", "train.steps=1"};
  const auto places = [&] {
    const json::array found = tensors(job, "layer.0/mlp/up/weights", how);
    std::vector<std::pair<json::value, json::value>> all;
    for (const json::value& rank : found.at(0).at("ranks").as_array()) {
      all.emplace_back(rank.at("host"), rank.at("device"));
    }
    return all;
  };
  const json::value here = shardrun::host_name().c_str();
  CHECK((places() == std::vector<std::pair<json::value, json::value>>(2, {here, "cpu"})));

  const Ended second = run_script(job.path(),
                                  "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 "
                                  "MASTER_PORT=1 $0 show-sharding job.ini layer.0/mlp/up/weights --json --set "
                                  "job.strategy=dp --set job.ranks=2");
  INFO(second.err);
  const json::value ranks = json::parse(second.out).at("tensors").at(0).at("ranks");
  CHECK(ranks.at(0).at("host").is_null());
  CHECK(ranks.at(0).at("device") == "cpu");
  CHECK(ranks.at(1).at("host") == here);

  REQUIRE(job.run(how).code == 0);
  std::string summary = read_file(job.path() / "run/summary.json");
  const std::string host = "\"host\": \"" + shardrun::host_name() + "\"";
  summary.replace(summary.rfind(host), host.size(), "\"host\": \"elsewhere\"");
  write_file(job.path() / "run/summary.json", summary);
  CHECK(places().back() == std::pair<json::value, json::value>("elsewhere", "cpu"));
}

TEST_CASE("the parts shown for every rank are the parts of its program", "[program]") {
  const JobFolder job;
  for (const char* strategy : {"dp", "tp", "zero3"}) {
    DYNAMIC_SECTION(strategy) {
      const std::vector<std::string> how = {"job.strategy=" + std::string(strategy), "job.ranks=3"};
      const json::array all = tensors(job, "*", how);
      CHECK(all.size() > 50);
      std::int64_t parameters = 0;
      for (const json::value& tensor : all) {
        if (tensor.at("kind") == "parameter") {
          parameters += tensor.at("ranks").at(0).at("bytes").to_number<std::int64_t>();
        }
      }
      const Ended plan = run_program(job.path(), with_settings({"plan", "job.ini", "--json"}, how));
      CHECK(parameters ==
            json::parse(plan.out).at("ranks").at(0).at("bytes").at("parameters").to_number<std::int64_t>());
    }
  }
}

TEST_CASE("stored, used, gradient and reduced placements are shown separately", "[program]") {
  const JobFolder job;
  const json::object zero3 =
      tensors(job, "layer.0/mlp/up/weights", {"job.strategy=zero3", "job.ranks=2"}).at(0).at("placements").as_object();
  CHECK(zero3.at("stored").at("text") != zero3.at("used").at("text"));
  const json::object dp = tensors(job, "gradients/layer.0/mlp/up/weights", {"job.strategy=dp", "job.ranks=2"})
                              .at(0)
                              .at("placements")
                              .as_object();
  CHECK(dp.at("gradient").at("partial").as_array().size() == 1);
  CHECK(dp.at("reduced").at("partial").as_array().empty());
}

TEST_CASE("bytes follow the job's precision", "[program]") {
  const JobFolder job;
  const auto bytes = [&](const char* tensor) {
    const json::object found = tensors(job, tensor, {"train.precision=mixed"}).at(0).as_object();
    return std::pair(found.at("element_bytes").as_int64(), found.at("ranks").at(0).at("bytes").as_int64());
  };
  CHECK(bytes("layer.0/mlp/up/weights") == std::pair<std::int64_t, std::int64_t>(2, 2 * 16 * 64));
  CHECK(bytes("gradients/layer.0/mlp/up/weights") == std::pair<std::int64_t, std::int64_t>(4, 4 * 16 * 64));
  CHECK(bytes("first_moment/layer.0/mlp/up/weights") == std::pair<std::int64_t, std::int64_t>(4, 4 * 16 * 64));
  CHECK(bytes("layer.1/residual") == std::pair<std::int64_t, std::int64_t>(2, 2 * 7 * 16 * 16));
  CHECK_THAT(show(job, "layer.0/mlp/up/weights", {"train.precision=mixed"}).out,
             Contains("parameter bf16[embed 16, mlp 64], 2.00 KiB\n"));
}

TEST_CASE("a flat placement is shown as runs of elements", "[program]") {
  const JobFolder job;
  const json::array found = tensors(job, "first_moment/layer.0/mlp/up/weights", {"job.strategy=zero1", "job.ranks=3"});
  REQUIRE(found.size() == 1);
  const json::value& stored = found[0].at("placements").at("stored");
  CHECK(stored.at("text") == "[- | -] flat data");
  CHECK(stored.at("flat") == json::parse(R"(["data"])"));
  std::int64_t end = 0;
  for (const json::value& rank : found[0].at("ranks").as_array()) {
    CHECK(rank.at("run").at(0) == end);
    end = rank.at("run").at(1).as_int64();
    CHECK(rank.at("shape") == json::array{rank.at("elements")});
  }
  CHECK(end == 16 * 64);
}

TEST_CASE("a cut point is shown with the placement it is computed with", "[program]") {
  const JobFolder job;
  const json::array found =
      tensors(job, "layer.1/residual", {"job.strategy=tp", "job.ranks=2", "strategy.sequence=true"});
  REQUIRE(found.size() == 1);
  CHECK_THAT(json::value_to<std::string>(found[0].at("kind")), StartsWith("cut point in micro"));
  CHECK(found[0].at("ranks").at(1).at("ranges") == json::parse("[[0, 7], [8, 16], [0, 16]]"));
}

TEST_CASE("in a pipeline only the stages that use a tensor have parts of it", "[program]") {
  const JobFolder job;
  const std::vector<std::string> how = {"job.strategy=pp", "job.ranks=2", "model.layers=2"};
  const auto ranks = [&](const char* tensor) {
    std::vector<std::int64_t> having;
    const json::array found = tensors(job, tensor, how);
    for (const json::value& rank : found.front().at("ranks").as_array()) {
      having.push_back(rank.at("rank").as_int64());
    }
    return having;
  };
  CHECK(ranks("embedding/tokens") == std::vector<std::int64_t>{0, 1});
  CHECK(ranks("first_moment/embedding/tokens") == std::vector<std::int64_t>{0});
  CHECK(ranks("layer.0/mlp/up/weights") == std::vector<std::int64_t>{0});
  CHECK(ranks("layer.1/residual") == std::vector<std::int64_t>{1});
  CHECK_THAT(show(job, "final_norm/gain", how).out, Contains("stage     1 of 2\n"));
}

TEST_CASE("inputs and outputs are shown where they are read and made", "[program]") {
  const JobFolder job;
  const json::object inputs = tensors(job, "inputs", {"job.strategy=dp", "job.ranks=3"}).at(0).as_object();
  CHECK_THAT(json::value_to<std::string>(inputs.at("kind")), StartsWith("input of micro"));
  CHECK_THAT(show(job, "inputs", {"job.strategy=dp", "job.ranks=3"}).out, Contains("placement [data | -]"));
  const std::vector<std::string> pp = {"job.strategy=pp", "job.ranks=2"};
  CHECK_THAT(show(job, "inputs", pp).out, Contains("stage     0 of 2\n"));
  CHECK_THAT(show(job, "targets", pp).out, Contains("stage     1 of 2\n"));
  CHECK_THAT(show(job, "logits", {"train.sample=1"}).out, Contains("output of predict"));
}

TEST_CASE("an unknown tensor is refused with the nearest name", "[program]") {
  const JobFolder job;
  const auto refused = [&](const std::string& tensor) {
    const Ended ended = show(job, tensor, {});
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    return ended.err;
  };
  CHECK(refused("layer.0/mlp/up/wieghts") ==
        "shardrun: show-sharding: the job has no state, cut point, input or output 'layer.0/mlp/up/wieghts' (did you "
        "mean "
        "'layer.0/mlp/up/weights'?); show-sharding JOB.ini '*' shows all, and a glob some\n");
  CHECK_THAT(refused("nothing*"), Contains("no state, cut point, input or output 'nothing*'"));
  const Ended missing = run_program(job.path(), {"show-sharding", "job.ini"});
  CHECK(missing.code == 2);
  CHECK_THAT(missing.err, Contains("expected JOB.ini TENSOR"));
}
