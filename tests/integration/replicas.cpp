// Replicas that differ are found. Those of a healthy job never differ.

#include <string>
#include <utility>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace json = boost::json;

namespace {

using Settings = std::vector<std::string>;

Settings joined(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// A job in which rank 1 receives one flipped bit.
Ended run_flipped(const JobFolder& job, int at_op, const std::string& over, const Settings& settings) {
  return job.run(joined({"job.transport=chaos", "transport.chaos.over=" + over, "transport.chaos.corrupt=true",
                         "transport.chaos.rank=1", "transport.chaos.at_op=" + std::to_string(at_op), "job.timeout=5"},
                        settings));
}

std::string error_of(const JobFolder& job) { return std::string(job.summary().at("error").as_string()); }

/// An operation whose result gets a flipped bit on rank 1, and what follows.
struct Flip {
  std::string name;
  Settings settings;
  int at_op = 1;
  std::string what;   ///< the operation, as chaos tells it
  std::string found;  ///< the ranks, as the error names them
};

std::vector<Flip> flips() {
  return {
      {"dp",
       {"job.strategy=dp", "job.ranks=3"},
       1,
       "all_reduce of gradients/",
       "rank 1 has other bits than ranks 0 and 2"},
      {"dp of two",
       {"job.strategy=dp", "job.ranks=2"},
       1,
       "all_reduce of gradients/",
       "no majority says whose are right"},
      {"zero1",
       {"job.strategy=zero1", "job.ranks=3"},
       18,
       "all_gather of step/",
       "rank 1 has other bits than ranks 0 and 2"},
      {"zero1, the norm",
       {"job.strategy=zero1", "job.ranks=3"},
       17,
       "all_reduce of norm_squared",
       "gradient_norm (metric) differ: rank 1"},
      {"tp, what norms are given",
       {"job.strategy=tp", "job.ranks=3"},
       1,
       "all_reduce of embedding",
       "rank 1 has other bits than ranks 0 and 2"},
      {"3d",
       {"job.strategy=3d", "job.ranks=8", "mesh.data=2", "mesh.model=2", "mesh.pipe=2"},
       10,
       "all_reduce of gradients/",
       "rank 1 | rank 3 have different bits"},
  };
}

}  // namespace

TEST_CASE("a bit flipped on one rank fails the job and names the tensor, the ranks and the step", "[replicas]") {
  for (const char* over : {"shm", "tcp"}) {
    for (const Flip& flip : flips()) {
      DYNAMIC_SECTION(flip.name << " over " << over) {
        const JobFolder job;

        const Ended ended = run_flipped(job, flip.at_op, over, joined(flip.settings, {"train.steps=1"}));

        INFO(ended.out << ended.err);
        REQUIRE_THAT(ended.out, Contains("rank 1 flips a bit of element ") && Contains(flip.what));
        CHECK(ended.code == 1);
        CHECK_THAT(error_of(job), Contains("step 1: the replicas of ") && Contains(flip.found) &&
                                      Contains("They had not been compared before"));
        CHECK(job.summary().at("steps") == 0);
        CHECK_FALSE(std::filesystem::exists(job.path() / "run/weights.safetensors"));
      }
    }
  }
}

TEST_CASE("sums between the replicas of a sharded model are compared", "[replicas]") {
  const JobFolder job;
  const Settings hsdp = {"job.strategy=hsdp", "job.ranks=4", "mesh.replica=2", "mesh.shard=2", "train.steps=1"};
  for (int at_op = 44;; ++at_op) {
    const Ended ended = run_flipped(job, at_op, "shm", hsdp);
    INFO(at_op << ": " << ended.out << ended.err);
    REQUIRE_THAT(ended.out, Contains("rank 1 flips a bit of element "));
    if (ended.out.find("'all_reduce of gradients/") != std::string::npos) {
      CHECK(ended.code == 1);
      CHECK_THAT(error_of(job), Contains("rank 1 | rank 3 have different bits"));
      break;
    }
  }
}

TEST_CASE("replicas are compared every so many steps, at evaluations and before the weights are written",
          "[replicas]") {
  const Settings dp = {"job.strategy=dp", "job.ranks=3"};
  // Each step has two operations, and each comparison two more.
  const auto failed_at = [&](int at_op, const Settings& settings) {
    const JobFolder job;
    std::string text = read_file(job.path() / "job.ini");
    const std::string every = "eval_every = 10\n";
    text.erase(text.find(every), every.size());
    write_file(job.path() / "job.ini", text);
    const Ended ended = run_flipped(job, at_op, "shm", joined(dp, settings));
    INFO(ended.out << ended.err);
    CHECK(ended.code == 1);
    CHECK(job.summary().at("steps").to_number<std::size_t>() == job.metrics().size());
    return error_of(job);
  };
  CHECK_THAT(failed_at(7, {"train.steps=9", "job.check_every=2"}),
             Contains("step 4: the replicas of ") && Contains("All replicas were equal after step 2."));
  CHECK_THAT(failed_at(1, {"train.steps=9", "train.eval_every=4"}), Contains("step 4: the replicas of "));
  CHECK_THAT(failed_at(1, {"train.steps=3"}), Contains("step 3: the replicas of "));

  CHECK_THAT(failed_at(1, {"train.steps=3", "data.split=1"}), Contains("step 3: the replicas of "));

  const JobFolder never;
  CHECK(run_flipped(never, 1, "shm", joined(dp, {"train.steps=3", "job.check_every=-1"})).code == 0);
  CHECK(never.summary().at("checks") == 0);
}

TEST_CASE("a bit flipped in the comparison itself is reported as such", "[replicas]") {
  for (const int at_op : {2, 3}) {
    INFO(at_op);
    const JobFolder job;
    const Ended ended =
        run_flipped(job, at_op, "shm", {"job.strategy=dp", "job.ranks=3", "train.steps=2", "job.check_every=1"});
    CHECK(ended.code == 1);
    CHECK_THAT(error_of(job), Contains("a transport (chaos, shm) changed data: what the ranks told each other"));
  }
}

TEST_CASE("a flipped bit in an agreement is reported at once if no rank can have sent the number", "[replicas]") {
  const JobFolder job;
  const Ended ended =
      run_flipped(job, 2, "shm", {"job.strategy=dp", "job.ranks=2", "train.steps=3", "job.check_every=-1"});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.out + ended.err, Contains("'all_reduce of agreement'"));
  CHECK_THAT(error_of(job),
             StartsWith("rank 1 ") && Contains("step 1: a transport (chaos, shm) changed data: the largest of "
                                               "the ranks' numbers came out as 16777216 on rank 1"));
}

TEST_CASE("healthy replicas are equal with every strategy over every transport", "[replicas]") {
  struct Layout {
    std::string name;
    Settings settings;
    bool has_copies = true;
  };
  const std::vector<Layout> layouts = {
      {"single", {}, false},
      {"dp", {"job.strategy=dp", "job.ranks=3"}},
      {"dp in order", {"job.strategy=dp", "job.ranks=3", "job.deterministic=true", "job.threads=2"}},
      {"zero1", {"job.strategy=zero1", "job.ranks=3"}},
      {"zero2", {"job.strategy=zero2", "job.ranks=3"}},
      {"zero3", {"job.strategy=zero3", "job.ranks=3"}},
      {"zero1 of uneven pieces", {"job.strategy=zero1", "job.ranks=3", "model.width=20", "model.heads=1"}},
      {"zero2 of uneven pieces", {"job.strategy=zero2", "job.ranks=3", "model.width=20", "model.heads=1"}},
      {"zero3 of uneven pieces", {"job.strategy=zero3", "job.ranks=3", "model.width=20", "model.heads=1"}},
      {"hsdp", {"job.strategy=hsdp", "job.ranks=4", "mesh.replica=2", "mesh.shard=2"}},
      {"tp", {"job.strategy=tp", "job.ranks=3"}},
      {"tp along the sequence", {"job.strategy=tp", "job.ranks=3", "strategy.sequence=true"}},
      {"pp", {"job.strategy=pp", "job.ranks=2", "model.tied=true"}},
      {"zb-h1", {"job.strategy=pp", "job.ranks=2", "strategy.schedule=zb-h1", "model.tied=false"}},
      {"3d", {"job.strategy=3d", "job.ranks=8", "mesh.data=2", "mesh.model=2", "mesh.pipe=2", "strategy.zero=1"}},
      {"named", {"job.strategy=named", "job.ranks=3", "sharding.batch=data", "mesh.data=3"}}};
  const std::vector<std::string> transports = installed("transport");
  for (std::size_t l = 0; l < layouts.size(); ++l) {
    const Layout& layout = layouts[l];
    const auto every = depth<std::size_t>(1, transports.size(), transports.size());  // one transport per split, in turn
    for (std::size_t t = l % every; t < transports.size(); t += every) {
      const std::string& transport = transports[t];
      DYNAMIC_SECTION(layout.name << " over " << transport) {
        const JobFolder job;
        Settings settings = joined(layout.settings, {"train.steps=4", "data.microbatches=2", "model.dropout=0.1"});
        const bool alone = layout.name == "single";
        if (!alone) {
          settings.push_back("job.transport=" + transport);
        }

        const Ended ended = job.run(joined(settings, {"job.check_every=1"}));

        INFO(ended.err);
        REQUIRE(ended.code == 0);
        const json::object summary = job.summary();
        CHECK(summary.at("checks").to_number<int>() == (layout.has_copies ? 4 : 0));
        for (const json::value& rank : summary.at("ranks").as_array()) {
          CHECK(rank.at("peak_bytes") == rank.at("planned_bytes"));
        }
        if (!alone) {
          const JobFolder plain;
          REQUIRE(plain.run(joined(settings, {"job.check_every=-1"})).code == 0);
          CHECK(job.losses() == plain.losses());
          CHECK(summary.at("ranks").at(0).at("sent_bytes") == plain.summary().at("ranks").at(0).at("sent_bytes"));
        }
      }
    }
  }
}

TEST_CASE("fields that several ranks hold are compared while a model is iterated", "[replicas]") {
  const JobFolder folder;
  const std::string job =
      "[job]\ntask = iterate\nranks = 4\nstrategy = named\noutput = run\ncheck_every = 1\n"
      "[mesh]\ncopy = 2\nspace = 2\n[model]\nname = heat1d\ncells = 9\n[sharding]\nx = space\n"
      "[iterate]\nsteps = 5\nsave_every = 2\n";
  write_file(folder.path() / "heat.ini", job);

  const Ended ended = run_program(folder.path(), {"heat.ini"});

  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK(folder.summary().at("checks") == 5);
  const Ended flipped =
      run_program(folder.path(), with_settings({"heat.ini"}, {"job.transport=chaos", "transport.chaos.corrupt=true",
                                                              "transport.chaos.rank=1", "transport.chaos.at_op=1"}));
  CHECK(flipped.code == 1);
  CHECK_THAT(error_of(folder), Contains("step 1: the replicas of temperature (field) differ: rank 1 | rank 3"));
}
