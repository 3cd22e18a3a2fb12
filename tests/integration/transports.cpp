// One job over every transport, and over a different transport for each mesh axis. The losses are the same, and so are
// the bits if sums are made in the order of the ranks.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

struct Split {
  std::string strategy;
  std::vector<std::string> settings;
  bool has_axes = false;  ///< data and model
};

const std::vector<Split> splits = {
    {"dp", {"job.ranks=3"}},    {"zero1", {"job.ranks=3"}},
    {"zero2", {"job.ranks=3"}}, {"zero3", {"job.ranks=3"}},
    {"tp", {"job.ranks=2"}},    {"3d", {"job.ranks=4", "mesh.data=2", "mesh.model=2", "strategy.zero=2"}, true},
};

/// The settings of [job] transport and [transport] with which the job runs, one after the other.
std::vector<std::vector<std::string>> choices(const Split& split) {
  std::vector<std::vector<std::string>> all = {{"job.transport=shm"}, {"job.transport=gloo"}, {"job.transport=tcp"}};
  if (split.has_axes) {
    all.push_back({"job.transport=tcp", "transport.model=shm"});
    all.push_back({"transport.model=gloo", "transport.data=shm"});
  }
  return all;
}

struct Learned {
  std::vector<double> losses;
  std::string weights;  ///< the file
};

Learned learned(const Split& split, std::vector<std::string> settings) {
  const JobFolder job;
  settings.insert(settings.end(), split.settings.begin(), split.settings.end());
  settings.insert(settings.end(), {"job.strategy=" + split.strategy, "train.steps=12", "data.microbatches=2"});
  const Ended ended = job.run(settings);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return {job.losses(), read_file(job.path() / "run/weights.safetensors")};
}

std::vector<std::string> with_determinism(std::vector<std::string> settings) {
  settings.push_back("job.deterministic=true");
  return settings;
}

}  // namespace

TEST_CASE("a job learns the same over every transport, and over one for each axis", "[transports]") {
  for (const Split& split : splits) {
    // Other tests compare these splits with the reference over every transport. Their bits are compared below.
    if (!all_tests && !split.has_axes) {
      continue;
    }
    DYNAMIC_SECTION(split.strategy) {
      const std::vector<std::vector<std::string>> all = choices(split);
      const std::vector<double> expected = learned(split, all.front()).losses;
      REQUIRE(expected.size() == 12);
      for (std::size_t c = 1; c < all.size(); ++c) {
        const std::vector<double> found = learned(split, all[c]).losses;
        REQUIRE(found.size() == expected.size());
        for (std::size_t i = 0; i < found.size(); ++i) {
          CHECK(found[i] == Approx(expected[i]).epsilon(1e-5));
        }
      }
    }
  }
}

TEST_CASE("a deterministic job has the same bits over every transport, and each time", "[transports]") {
  for (const Split& split : splits) {
    DYNAMIC_SECTION(split.strategy) {
      const std::vector<std::vector<std::string>> all = choices(split);
      const Learned first = learned(split, with_determinism(all.front()));
      REQUIRE(first.losses.size() == 12);
      for (std::size_t c = split.has_axes ? 0 : 1; c < all.size(); ++c) {
        const Learned found = learned(split, with_determinism(all[c]));
        CHECK(found.losses == first.losses);
        CHECK((found.weights == first.weights));
      }
    }
  }
}

TEST_CASE("a deterministic job has the planned memory and traffic", "[transports]") {
  const JobFolder job;
  const std::vector<std::string> settings = {"job.strategy=dp", "job.ranks=3", "job.transport=tcp",
                                             "job.deterministic=true", "train.steps=4"};
  REQUIRE(job.run(settings).code == 0);
  const Ended planned = run_program(job.path(), with_settings({"plan", "job.ini", "--json"}, settings));
  const boost::json::object summary = job.summary();
  const boost::json::object plan = boost::json::parse(planned.out).as_object();
  for (const boost::json::value& alike : plan.at("ranks").as_array()) {
    for (const boost::json::value& member : alike.at("members").as_array()) {
      const boost::json::value& rank = summary.at("ranks").as_array().at(member.to_number<std::size_t>());
      CHECK(rank.at("peak_bytes") == alike.at("bytes").at("peak"));
      CHECK(rank.at("sent_bytes") == alike.at("sent_bytes"));
    }
  }
}

TEST_CASE("hidden and exposed communication add up to all communication", "[transports]") {
  for (const std::string transport : {"shm", "gloo"}) {
    DYNAMIC_SECTION(transport) {
      double hidden = 0;
      // On a busy machine, a rank may find all transfers of a run unfinished.
      for (int runs = 0; runs < 8 && hidden == 0; ++runs) {
        const JobFolder job;
        REQUIRE(job.run({"job.strategy=zero3", "job.ranks=2", "job.transport=" + transport}).code == 0);
        for (const boost::json::object& step : job.metrics()) {
          const double step_hidden = step.at("comm_hidden_s").to_number<double>();
          const double exposed = step.at("comm_exposed_s").to_number<double>();
          CHECK(step.at("comm_s").to_number<double>() == Approx(step_hidden + exposed));
          CHECK(exposed > 0);
          CHECK(exposed <= step.at("step_s").to_number<double>());
          hidden += step_hidden;
        }
      }
      CHECK(hidden > 0);
    }
  }
}

TEST_CASE("a transport for an axis that the mesh lacks is refused", "[transports]") {
  const JobFolder job;
  const Ended ended = job.run({"job.strategy=dp", "job.ranks=2", "transport.modle=tcp"});
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("the mesh has no axis 'modle'") && Contains("data"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}
