// What 'shardrun plan' says about a job: idle ranks, whether it fits, and how much of it is printed.

#include <algorithm>
#include <fstream>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace json = boost::json;

namespace {

/// A job without data: it can be planned, not run.
class Bare {
 public:
  Bare() {
    std::ofstream(folder_ / "job.ini") << "[model]\nname = gpt\nlayers = 4\nheads = 4\nwidth = 64\ncontext = 32\n"
                                          "vocab = 64\n[data]\nbatch = 8\n[train]\nsteps = 10\n";
  }

  [[nodiscard]] Ended plan(const std::vector<std::string>& overrides, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"plan", "job.ini"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(folder_.path(), with_settings(words, overrides));
  }

  [[nodiscard]] json::object as_json(const std::vector<std::string>& overrides) const {
    const Ended ended = plan(overrides, {"--json"});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return json::parse(ended.out).as_object();
  }

 private:
  TemporaryFolder folder_;
};

std::vector<std::string> both(std::vector<std::string> some, const std::vector<std::string>& others) {
  some.insert(some.end(), others.begin(), others.end());
  return some;
}

std::int64_t lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

std::string remedy_of(const json::object& plan) {
  return plan.contains("idle") ? json::value_to<std::string>(plan.at("idle").at("reason")) + ": " +
                                     json::value_to<std::string>(plan.at("idle").at("remedy"))
                               : "";
}

}  // namespace

TEST_CASE("plan counts more FLOPs than 64 bits hold", "[plan]") {
  // 16 layers of 12 x 65536^2 parameters, 2^25 tokens: 6 FLOPs for each parameter and token. A microbatch has 1e19.
  const Bare job;
  const std::vector<std::string> large = {"model.layers=16", "model.width=65536", "model.context=4096",
                                          "data.batch=8192", "data.microbatches=16"};
  const double products = 6.0 * 16 * 12 * 65536 * 65536 * 8192 * 4096;
  const json::object plan = job.as_json(large);
  CHECK(plan.at("flops_per_step").to_number<double>() > products);
  CHECK(plan.at("flops_per_step").to_number<double>() < 1.2 * products);
  CHECK(plan.at("ranks").at(0).at("flops").to_number<double>() > products);
  CHECK_THAT(job.plan(large).out, Contains("EFLOP\n"));
}

TEST_CASE("plan reports ranks that are idle because microbatches have few rows, and each remedy it names helps",
          "[plan]") {
  const Bare job;
  const std::vector<std::string> dp = {"job.strategy=dp", "job.ranks=4"};
  const json::object plan = job.as_json(both(dp, {"data.microbatches=4"}));
  CHECK(plan.at("idle").at("ranks") == json::parse("[2, 3]"));
  CHECK(plan.at("idle").at("most_flops").as_int64() < 10);
  CHECK(remedy_of(plan) ==
        "microbatches of 2 rows keep 2 of 4 ranks busy: [data] microbatches = 2, or [data] batch = 16, or [job] ranks "
        "= 2");
  CHECK_THAT(job.plan(both(dp, {"data.microbatches=4"})).out,
             Contains("\n2 of 4 ranks are idle (ranks 2,3): at most 4 FLOP to do of forward and backward in a step"));
  CHECK_FALSE(job.as_json(both(dp, {"data.microbatches=2"})).contains("idle"));
  CHECK_FALSE(job.as_json(both(dp, {"data.microbatches=4", "data.batch=16"})).contains("idle"));
  CHECK_FALSE(job.as_json({"job.strategy=dp", "job.ranks=2", "data.microbatches=4"}).contains("idle"));

  CHECK(remedy_of(job.as_json({"job.strategy=zero3", "job.ranks=100"})) ==
        "a batch of 8 rows keeps 8 of 100 ranks busy: [data] batch = 100, or [job] ranks = 8");
  CHECK(remedy_of(job.as_json(
            {"job.strategy=3d", "job.ranks=8", "mesh.data=4", "mesh.model=2", "mesh.pipe=1", "data.microbatches=8"})) ==
        "microbatches of 1 row keep 1 of 4 ranks along data busy: [data] microbatches = 2, or [data] batch = 32, or "
        "[mesh] data = 1 and [job] ranks = 2");
}

TEST_CASE("plan reports stages without layers, and the remedy it names helps", "[plan]") {
  const Bare job;
  const std::vector<std::string> pp = {"job.strategy=pp", "data.microbatches=8"};
  CHECK(remedy_of(job.as_json(both(pp, {"job.ranks=8"}))) == "4 layers keep 4 of 8 stages busy: [job] ranks = 4");
  CHECK_FALSE(job.as_json(both(pp, {"job.ranks=4"})).contains("idle"));
}

TEST_CASE("plan and run report ranks without heads", "[plan]") {
  const Bare job;
  const std::vector<std::string> tp = {"job.strategy=tp", "job.ranks=3", "model.heads=2"};
  const json::object plan = job.as_json(tp);
  CHECK_FALSE(plan.contains("idle"));
  json::object without = plan.at("without").as_array().at(0).as_object();
  const double share = without.at("share").as_double();
  CHECK(share > 0.1);
  CHECK(share < 0.9);
  without.erase("share");
  CHECK(without == json::parse(R"({"axis": "heads", "size": 2, "ranks": [2]})"));
  CHECK_THAT(job.plan(tp).out,
             Contains("\nrank 2 has no heads and is idle where others compute with them, with ") &&
                 Contains(" % of the busiest rank's FLOPs in forward and backward: a dimension of 2 is split over 3 "
                          "ranks along model\n"));
  CHECK_THAT(job.plan({"job.strategy=tp", "job.ranks=2", "model.heads=2"}).out, !Contains("has no heads"));
}

TEST_CASE("uneven splits do not count as idle ranks", "[plan]") {
  const Bare job;
  for (const std::vector<std::string>& how :
       std::vector<std::vector<std::string>>{{"job.strategy=dp", "job.ranks=4", "data.batch=7"},
                                             {"job.strategy=pp", "job.ranks=3", "data.microbatches=4"},
                                             {"job.strategy=tp", "job.ranks=3"},
                                             {"job.strategy=tp", "job.ranks=8"},
                                             {"job.strategy=zero3", "job.ranks=3"}}) {
    INFO(how[0] << " " << how[1]);
    CHECK_FALSE(job.as_json(how).contains("idle"));
  }
}

TEST_CASE("plan says that nothing is split", "[plan]") {
  const Bare job;
  const std::string all = "each of the 4 ranks computes all of the job";
  const std::vector<std::string> named = {"job.strategy=named", "job.ranks=4", "mesh.data=4"};
  CHECK_THAT(job.plan(named).out, Contains(all));
  CHECK_THAT(job.plan(both(named, {"sharding.batch=data"})).out, !Contains(all));
}

TEST_CASE("a run reports idle ranks when it begins", "[plan]") {
  const JobFolder job;
  const Ended run = job.run(
      {"job.strategy=dp", "job.ranks=2", "data.batch=2", "data.microbatches=2", "train.steps=1", "train.eval_every=1"});
  INFO(run.err);
  CHECK(run.code == 0);
  CHECK_THAT(run.out, Contains("1 of 2 ranks is idle (rank 1): 2 FLOP to do of forward and backward in a step"));
  CHECK_THAT(run.out, Contains("microbatches of 1 row keep 1 of 2 ranks busy: set [data] microbatches = 1"));
  CHECK_THAT(job.run({"train.steps=1", "train.eval_every=1"}).out, !Contains("idle"));
}

TEST_CASE("plan compares ranks with [cluster] memory, and names settings with which they fit", "[plan]") {
  const Bare job;
  const std::vector<std::string> dp = {"job.strategy=dp", "job.ranks=2"};
  const json::object enough = job.as_json(both(dp, {"cluster.memory=1G"}));
  CHECK(enough.at("memory").at("fits") == true);
  CHECK(enough.at("memory").at("bytes") == 1000000000);
  CHECK_FALSE(enough.contains("predicted"));
  CHECK_FALSE(enough.at("memory").as_object().contains("tried"));

  const std::int64_t peak = enough.at("memory").at("most").as_int64();
  const std::string limit = "cluster.memory=" + std::to_string(peak - 1);
  const json::object tight = job.as_json(both(dp, {limit}));
  CHECK(tight.at("memory").at("fits") == false);
  CHECK(tight.at("memory").at("ranks_over") == 2);
  std::size_t fitting = 0;
  for (const json::value& tried : tight.at("memory").at("tried").as_array()) {
    std::vector<std::string> settings;
    for (const json::value& setting : tried.at("settings").as_array()) {
      settings.push_back(json::value_to<std::string>(setting));
    }
    // A setting that replaces another is set instead of it.
    std::vector<std::string> how =
        settings.front().starts_with("job.strategy=") ? std::vector<std::string>{"job.ranks=2"} : dp;
    const json::object again = job.as_json(both(both(how, {limit}), settings));
    CHECK(again.at("memory").at("fits") == tried.at("fits"));
    CHECK(again.at("memory").at("most") == tried.at("most"));
    fitting += tried.at("fits").as_bool() ? 1 : 0;
  }
  CHECK(fitting >= 2);

  const Ended text = job.plan(both(dp, {limit}));
  CHECK_THAT(text.out, Contains("\n2 ranks do not fit: the fullest, rank 0, needs") &&
                           Contains("of [cluster] memory: 1 B too much (1 bytes)\n") &&
                           Contains("it fits with one of these") && Contains("  [train] remat = "));
  const Ended none = job.plan(both(dp, {"cluster.memory=64KiB"}));
  CHECK_THAT(none.out, Contains("nothing that was tried makes it fit") && Contains("tried too, and not enough:\n"));
}

TEST_CASE("a job that does not fit is planned along two mesh axes, too, and equal splits share a line", "[plan]") {
  const Bare job;
  const Ended text = job.plan({"job.strategy=dp", "job.ranks=4", "data.batch=8", "cluster.memory=1KiB"});
  INFO(text.out);
  CHECK_THAT(text.out, Contains("[job] strategy = hsdp, the same as [job] strategy = zero3 "));
  CHECK_THAT(text.out, Contains("[job] strategy = 3d, [mesh] data = 2, [mesh] model = 2 "));
  CHECK_THAT(text.out, !Contains("[mesh] data = 2, [mesh] replica = 2 "));  // it needs as much memory as data alone
  CHECK_THAT(text.out, Contains("\nfullest: all alike, in "));
}

TEST_CASE("settings with which ranks fit have a predicted time, other meshes among them", "[plan]") {
  const Bare job;
  const std::vector<std::string> split = {"job.strategy=3d",      "job.ranks=4",         "mesh.data=4",
                                          "cluster.flops=1e9",    "cluster.memory=64KB", "cluster.memory_bandwidth=1e9",
                                          "cluster.bandwidth=1e9"};
  std::size_t meshes = 0;
  const json::object plan = job.as_json(split);
  for (const json::value& tried : plan.at("memory").at("tried").as_array()) {
    std::vector<std::string> settings;
    for (const json::value& setting : tried.at("settings").as_array()) {
      settings.push_back(json::value_to<std::string>(setting));
      CHECK_FALSE(settings.back().starts_with("strategy.schedule"));  // without stages this setting changes nothing
    }
    CHECK(tried.at("most").as_int64() < plan.at("memory").at("most").as_int64());
    if (settings.front().starts_with("mesh.") && settings.size() == 2) {
      const std::vector<std::string> given(split.begin(), split.begin() + 2);
      const std::vector<std::string> rates(split.begin() + 3, split.end());
      CHECK(job.as_json(both(both(given, settings), rates)).at("predicted").at("step_s") == tried.at("step_s"));
      ++meshes;
    }
  }
  CHECK(meshes >= 2);
  CHECK_THAT(job.plan(split).out, Contains("[mesh] data = 2, [mesh] model = 2 ") && Contains(" a step\n"));
}

TEST_CASE("transport = auto is shared memory within a machine, and the network's transport between machines",
          "[plan]") {
  const Bare job;
  const std::vector<std::string> split = {"job.strategy=3d", "job.ranks=8", "mesh.data=4", "mesh.model=2",
                                          "job.transport=auto"};
  const auto chosen = [&](const std::vector<std::string>& how) {
    const json::object transports = job.as_json(both(split, how)).at("transports").as_object();
    return json::value_to<std::string>(transports.at("data").at("transport")) + " " +
           json::value_to<std::string>(transports.at("model").at("transport"));
  };
  CHECK(chosen({}) == "shm shm");
  CHECK(chosen({"cluster.ranks_per_machine=4"}) == "tcp shm");
  CHECK(chosen({"cluster.ranks_per_machine=3"}) == "tcp tcp");
  CHECK(chosen({"cluster.ranks_per_machine=4", "transport.model=gloo"}) == "tcp gloo");
  CHECK(chosen({"cluster.ranks_per_machine=4", "transport.tcp.protect=none"}) == "tcp shm");
  CHECK_THAT(job.plan(both(split, {"cluster.ranks_per_machine=4"})).out,
             Contains("mesh axis data: transport tcp\nmesh axis model: transport shm\n"));
  const Ended refused = job.plan(both(split, {"transport.gloo.trusted=true"}));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("[transport.gloo] has no effect"));
}

TEST_CASE("an order of ranks is checked, and order = topology makes neighbours of those that exchange most", "[plan]") {
  const Bare job;
  const std::vector<std::string> split = {"job.strategy=named", "job.ranks=6",        "mesh.model=3",
                                          "mesh.data=2",        "sharding.mlp=model", "sharding.vocab=model"};
  const auto refused = [&](const std::string& order) {
    const Ended ended = job.plan(both(split, {"mesh.order=" + order}));
    CHECK(ended.code == 2);
    return ended.err;
  };
  for (const char* order : {"0, 1, 2, 3, 4", "0, 1, 2, 3, 4, 4", "0, 1, 2, 3, 4, 6", "0, 1, 2, 3, 4, 5, 6"}) {
    CHECK_THAT(refused(order), Contains("mesh.order: [mesh] order: expected each rank from 0 to 5 once"));
  }
  CHECK_THAT(refused("0, 1, x"), Contains("order"));
  const json::object written = job.as_json(both(split, {"mesh.order=5, 4, 3, 2, 1, 0"}));
  CHECK(written.at("order") == json::parse("[5, 4, 3, 2, 1, 0]"));
  CHECK_THAT(job.plan(both(split, {"mesh.order=5, 4, 3, 2, 1, 0"})).out,
             Contains("(model 3 × data 2, order 5 4 3 2 1 0)"));
  // Ranks exchange activations along model, and nothing along data.
  CHECK(job.as_json(both(split, {"mesh.order=topology"})).at("order") == json::parse("[0, 3, 1, 4, 2, 5]"));
  CHECK_FALSE(job.as_json(both(split, {})).contains("order"));
}

TEST_CASE("order = topology leaves least between machines, by what all ranks send", "[plan]") {
  const Bare job;
  // Rank 0 sends more along data, for the sums of its stage's large embedding. Together the ranks send more along pipe.
  const std::vector<std::string> split = {
      "job.strategy=3d",     "job.ranks=4",      "mesh.data=2",     "mesh.pipe=2",
      "data.microbatches=2", "model.vocab=4000", "strategy.zero=0", "cluster.ranks_per_machine=2"};
  const auto between = [&](const std::string& order) {
    const json::object plan = job.as_json(both(split, {"mesh.order=" + order}));
    CHECK(plan.at("between_machines").at("ranks_per_machine") == 2);
    return plan.at("between_machines").at("bytes").as_int64();
  };
  const json::object sent = job.as_json(split).at("ranks").at(0).at("sent_bytes").as_object();
  CHECK(sent.at("data").at("all_reduce").as_int64() > sent.at("pipe").at("send").as_int64());
  CHECK(between("topology") == between("0, 2, 1, 3"));
  CHECK(between("topology") < between("0, 1, 2, 3"));
  // The machines differ in their place along data. So what crosses between them is what ranks send along data.
  std::int64_t along_data = 0;
  const json::object plan = job.as_json(split);
  for (const json::value& ranks : plan.at("ranks").as_array()) {
    const auto members = static_cast<std::int64_t>(ranks.at("members").as_array().size());
    for (const auto& [collective, bytes] : ranks.at("sent_bytes").at("data").as_object()) {
      along_data += members * bytes.as_int64();
    }
  }
  CHECK(between("0, 2, 1, 3") == along_data);
  CHECK_THAT(job.plan(split).out, Contains("between machines") && Contains(" a step, with 2 ranks each\n"));
  // Without [cluster], any number of ranks may share a machine. For four ranks, only two per machine needs an order.
  const std::vector<std::string> unknown(split.begin(), split.end() - 1);
  CHECK(job.as_json(both(unknown, {"mesh.order=topology"})).at("order") == json::parse("[0, 2, 1, 3]"));
  CHECK_FALSE(job.as_json(unknown).contains("between_machines"));
}

TEST_CASE("other settings are planned for the machines that [cluster] says", "[plan]") {
  const Bare job;
  std::vector<std::string> tp = {"job.strategy=tp", "strategy.sequence=true", "job.ranks=4", "job.transport=auto",
                                 "cluster.ranks_per_machine=1"};
  const std::int64_t peak = job.as_json(both(tp, {"cluster.memory=1G"})).at("memory").at("most").as_int64();
  tp.push_back("cluster.memory=" + std::to_string(peak - 1));
  int kept = 0;
  const json::object tight = job.as_json(tp);
  for (const json::value& tried : tight.at("memory").at("tried").as_array()) {
    const auto first = json::value_to<std::string>(tried.at("settings").at(0));
    if (tried.at("settings").as_array().size() == 1 && !first.starts_with("job.strategy=") &&
        !first.starts_with("strategy.")) {
      CHECK(job.as_json(both(tp, {first})).at("memory").at("most") == tried.at("most"));
      ++kept;
    }
  }
  CHECK(kept > 0);
}

TEST_CASE("bfloat16 moments that would not decay are refused", "[plan]") {
  const Bare job;
  const auto refused = [&](const std::vector<std::string>& how) {
    const Ended ended = job.plan(both({"train.moments=bfloat16"}, how));
    CHECK(ended.code == 2);
    return ended.err;
  };
  CHECK_THAT(refused({}), Contains("moments = bfloat16 needs beta2 <= 0.996, and it is 0.999: ") &&
                              Contains("lower beta2, such as to 0.95, or set moments = float32"));
  CHECK_THAT(refused({"train.beta2=0.95", "train.beta1=0.9999"}), Contains("needs beta1 <= 0.996, and it is 0.9999"));
  CHECK_THAT(refused({"train.optimizer=sgd", "train.momentum=0.999"}), Contains("needs momentum <= 0.996"));
  CHECK_THAT(refused({"train.optimizer=sgd"}), Contains("has no effect: optimizer = sgd keeps moments only with"));
  CHECK(job.plan({"train.moments=bfloat16", "train.beta2=0.95"}).code == 0);
}

TEST_CASE("rates of [cluster] have no effect beside memory alone", "[plan]") {
  const Bare job;
  const auto refused = [&](const std::vector<std::string>& how) {
    const Ended ended = job.plan(both({"job.strategy=dp", "job.ranks=2", "cluster.memory=1G"}, how));
    CHECK(ended.code == 2);
    return ended.err;
  };
  CHECK_THAT(refused({"cluster.bandwidth=1e9"}),
             Contains("[cluster] bandwidth needs [cluster] flops or [cluster] measured"));
  CHECK_THAT(refused({"cluster.data.bandwidth=1e9"}), Contains("[cluster.data] has no effect without [cluster] flops"));
}

TEST_CASE("a run says where [cluster] memory is less than the job needs, or differs from the machine's", "[plan]") {
  const JobFolder job;
  const std::vector<std::string> steps = {"train.steps=1", "train.eval_every=1"};
  const Ended small = job.run(both(steps, {"cluster.memory=1K"}));
  CHECK(small.code == 0);
  CHECK_THAT(small.out, Contains("1 rank does not fit: the fullest, rank 0, needs") &&
                            Contains("this machine has enough, and the run goes on\n"));
  const Ended large = job.run(both(steps, {"cluster.memory=1000T"}));
  CHECK_THAT(large.out,
             Contains("[cluster] memory is 909 TiB a rank, and this machine has ") && Contains(" available\n"));
}

TEST_CASE("many ranks and stages are planned in less than 120 lines", "[plan]") {
  const Bare job;
  const std::vector<std::string> large = {"model.layers=48",       "data.batch=24",
                                          "data.microbatches=12",  "job.strategy=3d",
                                          "job.ranks=288",         "mesh.data=2",
                                          "mesh.model=3",          "mesh.pipe=48",
                                          "cluster.flops=1e12",    "cluster.memory_bandwidth=1e12",
                                          "cluster.bandwidth=1e9", "cluster.memory=1G"};
  const Ended ended = job.plan(large);
  INFO(ended.out);
  CHECK(ended.code == 0);
  CHECK(lines_of(ended.out) < 120);
  CHECK_THAT(ended.out, Contains("\nstages 0-2 ") && Contains("\nstages 45-47 ") &&
                            Contains("one of 3 stages is shown\n") && Contains("tokens a second"));
}

TEST_CASE("plan prints the least and the most over ranks, or the ranks that are asked for", "[plan]") {
  const Bare job;
  const std::vector<std::string> dp = {"job.strategy=dp", "job.ranks=4", "data.batch=6"};
  const json::object plan = job.as_json(dp);
  std::int64_t least = plan.at("ranks").at(0).at("bytes").at("peak").as_int64();
  std::int64_t most = 0;
  for (const json::value& alike : plan.at("ranks").as_array()) {
    least = std::min(least, alike.at("bytes").at("peak").as_int64());
    most = std::max(most, alike.at("bytes").at("peak").as_int64());
  }
  CHECK(least < most);
  const std::string summary = job.plan(dp).out;
  CHECK_THAT(summary, Contains("4 ranks              least bytes      most bytes\n") && !Contains("\nrank 0 "));
  CHECK_THAT(summary, Contains(std::to_string(least) + std::string(16 - std::to_string(most).size(), ' ') +
                               std::to_string(most)));
  const std::string all = job.plan(dp, {"--all"}).out;
  CHECK_THAT(all, Contains("\nrank 0 ") && Contains("\nrank 3 "));
  const std::string some = job.plan(dp, {"--ranks", "1-2"}).out;
  CHECK_THAT(some, Contains(" 1") && !Contains("\nrank 0 ") && !Contains("\nrank 3 "));
  for (const char* wrong : {"4", "2-1", "0,", "-1", "x", "0-9"}) {
    const Ended ended = job.plan(dp, {"--ranks", wrong});
    CHECK(ended.code == 2);
    CHECK_THAT(ended.err, Contains("--ranks: expected ranks from 0 to 3, such as 0,5,8-11; found '"));
  }
  CHECK_THAT(job.plan(dp, {"--ranks", "0", "--json"}).err, Contains("--ranks has no effect with --json"));
}

TEST_CASE("a pipeline's timeline takes the predicted costs", "[plan]") {
  const Bare job;
  const std::vector<std::string> pp = {"job.strategy=pp", "job.ranks=4", "data.microbatches=8"};
  const json::object plan =
      job.as_json(both(pp, {"cluster.flops=1e9", "cluster.memory_bandwidth=1e12", "cluster.bandwidth=1e12"}));
  const json::object& timeline = plan.at("timeline").as_object();
  CHECK(timeline.at("costs") == "cluster");
  double computing = 0;
  for (const json::value& stage : plan.at("predicted").at("stages").as_array()) {
    computing = std::max(computing, stage.at("compute_s").as_double());
  }
  CHECK(timeline.at("end").as_double() > computing / 2);
  for (const json::value& stage : timeline.at("stages").as_array()) {
    for (const json::value& action : stage.as_array()) {
      CHECK(action.at("end").as_double() > action.at("begin").as_double());
    }
  }
}

TEST_CASE("plan predicts tokens per second without data", "[plan]") {
  const Bare job;
  const json::object step =
      job.as_json({"cluster.flops=1e9", "cluster.memory_bandwidth=1e12"}).at("predicted").as_object();
  CHECK(step.at("tokens_per_s").as_double() == Approx(32 * step.at("samples_per_s").as_double()));
}

TEST_CASE("another rank's program is printed", "[plan]") {
  const Bare job;
  const std::vector<std::string> dp = {"job.strategy=dp", "job.ranks=3"};
  CHECK_THAT(job.plan(dp, {"--dump", "program"}).out, StartsWith("rank 0 of 3: "));
  CHECK_THAT(job.plan(dp, {"--dump", "program", "--rank", "2"}).out, StartsWith("rank 2 of 3: "));
  const auto refused = [&](const std::vector<std::string>& words) {
    const Ended ended = job.plan(dp, words);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    return ended.err;
  };
  CHECK_THAT(refused({"--dump", "program", "--rank", "3"}),
             Contains("--rank: expected a number from 0 to 2, found '3'"));
  CHECK_THAT(refused({"--dump", "graph", "--rank", "1"}), Contains("--rank has no effect with --dump graph"));
  CHECK_THAT(refused({"--rank", "1"}), Contains("--rank has no effect without --dump program"));
}
