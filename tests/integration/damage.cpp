// Bits that are flipped in the memory of a running rank, by a process that opens the rank's arena.

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include "core/files/descriptor.h"
#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

using Settings = std::vector<std::string>;

Settings joined(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// Where a state is in a rank's arena, in bytes.
struct Place {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// The place of a state; or of the last state that the rank holds and whose name begins with `state`.
Place place_of(const JobFolder& job, const Settings& settings, int rank, const std::string& state) {
  const Ended dumped = run_program(
      job.path(), with_settings({"job.ini", "--dump", "program", "--rank", std::to_string(rank)}, settings));
  INFO(dumped.err);
  REQUIRE(dumped.code == 0);
  std::istringstream lines(dumped.out);
  Place place;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.rfind('@');
    if (line.starts_with("state " + state) && at != std::string::npos) {
      const std::size_t plus = line.find('+', at);
      const Place found = {std::stoull(line.substr(at + 1), nullptr, 16), std::stoull(line.substr(plus + 1))};
      place = found.bytes > 0 ? found : place;
    }
  }
  REQUIRE(place.bytes > 0);
  return place;
}

/// Flips a bit of a process's arena.
void flip(pid_t process, std::uint64_t offset) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd")) {
    std::error_code none;
    if (std::filesystem::read_symlink(entry.path(), none).string().find("memfd:shardrun-arena") == std::string::npos) {
      continue;
    }
    const shardrun::files::FileDescriptor arena(open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    unsigned char byte = 0;
    REQUIRE(pread(arena.get(), &byte, 1, static_cast<off_t>(offset)) == 1);
    byte ^= 0x10U;
    REQUIRE(pwrite(arena.get(), &byte, 1, static_cast<off_t>(offset)) == 1);
    return;
  }
  FAIL("process " << process << " has no arena");
}

/// Runs a job, one of whose ranks has a bit of this byte flipped while all are stopped at a random moment.
Ended run_flipped(const JobFolder& job, const Settings& settings, int ranks, int victim, std::uint64_t offset) {
  bool is_done = false;
  return run_program(job.path(), with_settings({"job.ini"}, settings), [&](pid_t process, std::string_view out) {
    if (is_done || out.find("step 5") == std::string_view::npos) {
      return;
    }
    is_done = true;
    const std::vector<pid_t> all = ranks == 1 ? std::vector<pid_t>{process} : children_of(process);
    REQUIRE(all.size() == static_cast<std::size_t>(ranks));
    for (const pid_t each : all) {
      kill(each, SIGSTOP);
    }
    for (const pid_t each : all) {
      while (state_of(each) != 'T' && !ends_within(each, 1)) {
      }
    }
    flip(all[static_cast<std::size_t>(victim)], offset);
    for (const pid_t each : all) {
      kill(each, SIGCONT);
    }
  });
}

/// Settings with steps that take long enough to be stopped within one.
const Settings watched = {"train.steps=60", "train.log_every=1", "train.eval_every=0", "data.batch=16",
                          "job.timeout=20"};

struct Layout {
  std::string name;
  Settings settings;
  int ranks = 1;
};

std::vector<Layout> layouts() {
  return {{"single", {}, 1},
          {"dp", {"job.strategy=dp", "job.ranks=2"}, 2},
          {"zero1", {"job.strategy=zero1", "job.ranks=2"}, 2},
          {"zero2", {"job.strategy=zero2", "job.ranks=2"}, 2},
          {"zero3", {"job.strategy=zero3", "job.ranks=2"}, 2},
          {"tp", {"job.strategy=tp", "job.ranks=2"}, 2},
          {"pp", {"job.strategy=pp", "job.ranks=2", "data.microbatches=2"}, 2},
          {"hsdp", {"job.strategy=hsdp", "job.ranks=4", "mesh.replica=2", "mesh.shard=2"}, 4},
          {"3d",
           {"job.strategy=3d", "job.ranks=8", "mesh.data=2", "mesh.model=2", "mesh.pipe=2", "strategy.zero=1",
            "data.microbatches=2"},
           8}};
}

}  // namespace

TEST_CASE("a bit flipped in a parameter or a moment between two updates is named in every layout", "[damage]") {
  std::size_t turn = 0;
  for (const Layout& layout : layouts()) {
    for (const std::string state : {"layer.0/mlp/up/weights", "first_moment/layer.1/mlp/down/weights",
                                    "second_moment/layer.1/attention/output/weights"}) {
      constexpr auto every = depth<std::size_t>(1, 2, 2);  // one place each, in turn
      for (std::size_t place_number = turn++ % every; place_number < 2; place_number += every) {
        const bool is_last = place_number == 1;
        DYNAMIC_SECTION(layout.name << ", " << state << (is_last ? ", the last byte" : ", the first word")) {
          const JobFolder job;
          const Settings settings = joined(layout.settings, watched);
          const bool is_late_layer = state.find("layer.1") != std::string::npos;
          const int victim =
              layout.name == "pp" || layout.name == "3d" ? (is_late_layer ? layout.ranks - 1 : 0) : layout.ranks - 1;
          const Place place = place_of(job, settings, victim, state);
          const std::uint64_t offset = place.offset + (is_last ? place.bytes - 1 : 2);
          // A bit that is flipped after the update has read the byte, but before it writes the byte, changes nothing.
          Ended ended;
          for (int attempt = 0; attempt < 5 && ended.code == 0; ++attempt) {
            std::filesystem::remove(job.path() / "run/weights.safetensors");  // of a run in which nothing changed
            ended = run_flipped(job, settings, layout.ranks, victim, offset);
          }
          INFO(ended.out << ended.err);
          CHECK(ended.code == 1);
          const std::string error(job.summary().at("error").as_string());
          CHECK_THAT(error,
                     Contains("step ") && Contains(": bits of " + state) &&
                         Contains("have changed in the memory of rank " + std::to_string(victim) + " on host ") &&
                         Contains("wrote had the hash "));
          CHECK_FALSE(std::filesystem::exists(job.path() / "run/weights.safetensors"));
        }
      }
    }
  }
}

TEST_CASE("after a bit flip a job with restarts resumes from its newest checkpoint, and ends with the right bits",
          "[damage]") {
  const JobFolder job;
  const Settings settings =
      joined({"job.strategy=zero3", "job.ranks=2", "checkpoint.every=2", "job.restarts=2"}, watched);
  REQUIRE(job.run(joined(settings, {"job.output=whole"})).code == 0);
  const Place place = place_of(job, settings, 1, "second_moment/layer.0/mlp/up/weights");
  bool has_restarted = false;
  for (int attempt = 0; attempt < 5 && !has_restarted; ++attempt) {
    std::filesystem::remove_all(job.path() / "run");

    const Ended ended = run_flipped(job, settings, 2, 1, place.offset + 3);

    INFO(ended.out << ended.err);
    REQUIRE(ended.code == 0);
    CHECK(read_file(job.path() / "run/weights.safetensors") == read_file(job.path() / "whole/weights.safetensors"));
    has_restarted = job.summary().contains("attempts");
  }
  CHECK(has_restarted);
}

TEST_CASE("contradicting values of [job] check are refused before anything starts", "[damage]") {
  const JobFolder job;
  const auto refused = [&](const Settings& settings) {
    const Ended ended = job.run(settings);
    CHECK(ended.code == 2);
    CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
    return ended.err;
  };
  CHECK_THAT(refused({"job.check=state"}),
             Contains("is not one of states, transfers, replay, replicas, none") && Contains("did you mean 'states'?"));
  CHECK_THAT(refused({"job.check=none,states"}), Contains("names checks beside none"));
  CHECK_THAT(refused({"job.check=states", "job.check_every=2"}), Contains("contradicts [job] check = states"));
  CHECK_THAT(refused({"job.check=replicas", "job.check_every=-1"}), Contains("contradicts [job] check = replicas"));
  write_file(job.path() / "job.ini",
             "[job]\ntask = iterate\noutput = run\n[model]\nname = heat1d\ncells = 9\n[iterate]\nsteps = 5\n");
  CHECK_THAT(refused({"job.check=replay"}), Contains("only the training of a model has microbatches that can be"));
}

TEST_CASE("a bit that a transport flips is found by its receiver with checked transfers", "[damage]") {
  for (const Layout& layout : layouts()) {
    if (layout.ranks == 1) {
      continue;
    }
    DYNAMIC_SECTION(layout.name) {
      const JobFolder job;
      const auto run_corrupted = [&](int at_op) {
        return job.run(joined(layout.settings, {"train.steps=6", "job.check=transfers", "job.transport=chaos",
                                                "transport.chaos.corrupt=true", "transport.chaos.rank=1",
                                                "transport.chaos.at_op=" + std::to_string(at_op), "job.timeout=20"}));
      };
      // The first operations compare what the members have prepared, and most of their bits mean nothing.
      const Ended healthy = run_corrupted(1'000'000);
      REQUIRE(healthy.code == 0);
      const std::string counted = "rank 1 has started ";
      const std::size_t at = healthy.out.find(counted);
      REQUIRE(at != std::string::npos);
      const int ops = std::stoi(healthy.out.substr(at + counted.size()));
      for (const int back : {3, 8, 13}) {
        std::filesystem::remove_all(job.path() / "run");

        const Ended ended = run_corrupted(ops - back);

        INFO(back << " of " << ops << ": " << ended.out << ended.err);
        REQUIRE_THAT(ended.out, Contains("rank 1 flips a bit of element "));
        CHECK(ended.code == 1);
        CHECK_THAT(std::string(job.summary().at("error").as_string()), Contains("bits changed between member "));
        CHECK_FALSE(std::filesystem::exists(job.path() / "run/weights.safetensors"));
      }
    }
  }
}

TEST_CASE("checked transfers over sound transports change nothing, and the plan counts their hashes", "[damage]") {
  const std::vector<std::string> transports = {"shm", "tcp"};
  std::size_t turn = 0;
  for (const Layout& layout : layouts()) {
    if (layout.ranks == 1) {
      continue;
    }
    constexpr auto every = depth<std::size_t>(1, 2, 2);  // one transport each, in turn
    for (std::size_t t = turn++ % every; t < transports.size(); t += every) {
      DYNAMIC_SECTION(layout.name << " over " << transports[t]) {
        const JobFolder job;
        const Settings settings =
            joined(layout.settings, {"train.steps=4", "job.deterministic=true", "job.transport=" + transports[t]});
        REQUIRE(job.run(joined(settings, {"job.output=plain", "job.check=none"})).code == 0);

        const Ended ended = job.run(joined(settings, {"job.check=transfers"}));

        INFO(ended.err);
        REQUIRE(ended.code == 0);
        CHECK(read_file(job.path() / "run/weights.safetensors") == read_file(job.path() / "plain/weights.safetensors"));
        CHECK(computed_from(job.path() / "run", 0) == computed_from(job.path() / "plain", 0));
        const boost::json::object summary = job.summary();
        const boost::json::object plain = read_json(job.path() / "plain/summary.json");
        const Ended planned = run_program(
            job.path(), with_settings({"plan", "job.ini", "--json"}, joined(settings, {"job.check=transfers"})));
        REQUIRE(planned.code == 0);
        const boost::json::value plan = boost::json::parse(planned.out);
        for (const boost::json::value& alike : plan.at("ranks").as_array()) {
          for (const boost::json::value& member : alike.at("members").as_array()) {
            const auto number = member.to_number<std::size_t>();
            const boost::json::object& rank = summary.at("ranks").at(number).as_object();
            CHECK(rank.at("peak_bytes") == alike.at("bytes").at("peak"));
            CHECK(rank.at("sent_bytes") == alike.at("sent_bytes"));
            CHECK(rank.at("sent_bytes") != plain.at("ranks").at(number).at("sent_bytes"));
          }
        }
      }
    }
  }
}

TEST_CASE("replayed microbatches have the same bits on every layout", "[damage]") {
  for (const Layout& layout : layouts()) {
    DYNAMIC_SECTION(layout.name) {
      const JobFolder job;
      const Settings settings = joined(layout.settings, {"train.steps=6", "job.threads=2", "model.dropout=0.1"});
      REQUIRE(job.run(joined(settings, {"job.output=plain", "job.check=none"})).code == 0);

      const Ended ended = job.run(joined(settings, {"job.check=replay", "job.check_every=1"}));

      INFO(ended.err);
      REQUIRE(ended.code == 0);
      CHECK(read_file(job.path() / "run/weights.safetensors") == read_file(job.path() / "plain/weights.safetensors"));
      const boost::json::array ranks = job.summary().at("ranks").as_array();
      const boost::json::array plain = read_json(job.path() / "plain/summary.json").at("ranks").as_array();
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        CHECK(ranks[rank].at("sent_bytes") == plain[rank].at("sent_bytes"));
      }
    }
  }
}
