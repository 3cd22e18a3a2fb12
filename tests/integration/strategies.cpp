// Every strategy that this project brings, over every transport, against the reference.

#include <string>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
namespace json = boost::json;

namespace {

struct Case {
  std::string name;
  std::vector<std::string> settings;
};

Case pipeline(const std::string& schedule) {
  return {"pp, " + schedule, {"job.strategy=pp", "job.ranks=2", "strategy.schedule=" + schedule}};
}

std::vector<Case> strategies() {
  return {{"zero1", {"job.strategy=zero1", "job.ranks=3"}},
          {"zero2", {"job.strategy=zero2", "job.ranks=2"}},
          {"zero3", {"job.strategy=zero3", "job.ranks=3"}},
          pipeline("gpipe"),
          pipeline("1f1b"),
          pipeline("interleaved"),
          pipeline("zb-h1"),
          {"3d of 2x2x1", {"job.strategy=3d", "job.ranks=4", "mesh.data=2", "mesh.model=2", "strategy.zero=2"}},
          {"3d of 2x2x2",
           {"job.strategy=3d", "job.ranks=8", "mesh.data=2", "mesh.model=2", "mesh.pipe=2", "strategy.zero=3",
            "strategy.sequence=true"}},
          {"hsdp", {"job.strategy=hsdp", "job.ranks=4", "mesh.replica=2", "mesh.shard=2"}},
          {"tp with a sequence split", {"job.strategy=tp", "job.ranks=2", "strategy.sequence=true"}}};
}

/// Each strategy runs with one of these over one transport, and with the other over another.
const std::vector<std::vector<std::string>> models = {
    {"model.heads=3", "model.width=12", "model.bias=true", "model.tied=false", "model.dropout=0.1",
     "data.microbatches=3", "train.remat=layer"},
    {"model.heads=2", "model.width=8", "data.microbatches=4"}};

void append(std::vector<std::string>& settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
}

}  // namespace

TEST_CASE("every strategy agrees with the reference over every transport", "[verify]") {
  const std::vector<std::string> transports = installed("transport");
  REQUIRE(transports.size() >= 2);
  const std::vector<Case> cases = strategies();
  for (std::size_t c = 0; c < cases.size(); ++c) {
    for (std::size_t t = 0; t < transports.size(); ++t) {
      DYNAMIC_SECTION(cases[c].name << " over " << transports[t]) {
        const JobFolder job;
        std::vector<std::string> settings = cases[c].settings;
        append(settings, {"job.transport=" + transports[t], "model.context=6", "train.steps=2"});
        append(settings, models[(c + t) % models.size()]);
        const std::vector<std::string> words = with_settings({"verify", "job.ini", "--steps", "1", "--json"}, settings);

        const Ended ended = run_program(job.path(), words);

        INFO(ended.err);
        REQUIRE(ended.code == 0);
        const json::object report = json::parse(ended.out).as_object();
        CHECK(report.at("passed").as_bool());
        CHECK_FALSE(report.at("worst").as_array().empty());
      }
    }
  }
}
