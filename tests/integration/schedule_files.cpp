// Pipelines whose lists of actions the user wrote.

#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace json = boost::json;

namespace {

constexpr const char* one_forward_one_backward =
    "0F0,0F1,   ,0B0,0F2,0B1,   ,0B2\n"
    "   ,1F0,1B0,1F1,1B1,1F2,1B2,\n";

/// The first and the last of four chunks on one stage, the two between them on the other, and parts of backward.
constexpr const char* v_shaped =
    "0F0,0F1,3F0,3B0,3F1,3I1,0B0,0F2,0I1,3W1,0W1,3F2,3B2,0B2\r\n"
    "1F0,2F0,1F1,2F1,2B0,1B0,2I1,1I1,2W1,1W1,1F2,2F2,2B2,1B2\r\n";

/// Chunks that follow each other on one stage.
constexpr const char* neighbours =
    "0F0,1F0,0F1,1F1,0F2,1F2,1B0,0B0,1B1,0B1,1B2,0B2\n"
    "2F0,2B0,2F1,2B1,2F2,2B2\n";

/// A job of 2 ranks and 3 uneven microbatches, whose schedule is a file.
class WrittenJob {
 public:
  explicit WrittenJob(const std::string& actions, std::vector<std::string> more = {}) : settings_(std::move(more)) {
    write_file(job_.path() / "mine.csv", actions);
    for (const char* setting : {"job.ranks=2", "model.layers=4", "data.microbatches=3", "strategy.schedule=mine.csv"}) {
      settings_.emplace_back(setting);
    }
    if (!settings_.front().starts_with("job.strategy")) {
      settings_.insert(settings_.begin(), "job.strategy=pp");
    }
  }

  [[nodiscard]] Ended verify() const {
    return run_program(job_.path(), with_settings({"verify", "job.ini", "--steps", "2", "--json"}, settings_));
  }
  /// The message with which the job is refused before anything starts.
  [[nodiscard]] std::string refusal() const {
    const Ended ended = job_.run(settings_);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK_FALSE(std::filesystem::exists(job_.path() / "run"));
    return ended.err;
  }
  [[nodiscard]] json::object plan(const std::vector<std::string>& overrides) const {
    std::vector<std::string> settings = settings_;
    std::erase(settings, "strategy.schedule=mine.csv");
    settings.insert(settings.end(), overrides.begin(), overrides.end());
    const Ended ended = run_program(job_.path(), with_settings({"plan", "job.ini", "--json"}, settings));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return json::parse(ended.out).as_object();
  }

  [[nodiscard]] const std::filesystem::path& path() const { return job_.path(); }

 private:
  JobFolder job_;
  std::vector<std::string> settings_;
};

void check_passed(const Ended& ended) {
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(json::parse(ended.out).at("passed").as_bool());
}

}  // namespace

TEST_CASE("pipelines scheduled by a file agree with the reference", "[schedule_files]") {
  struct Written {
    const char* name;
    const char* actions;
  };
  for (const Written& written : {Written{"1f1b", one_forward_one_backward}, Written{"V", v_shaped},
                                 Written{"neighbours on one stage", neighbours}}) {
    DYNAMIC_SECTION(written.name) { check_passed(WrittenJob(written.actions).verify()); }
  }
}

TEST_CASE("a schedule from a file works on a mesh with other axes", "[schedule_files]") {
  const WrittenJob job(v_shaped, {"job.strategy=3d", "mesh.pipe=2", "mesh.data=1"});
  check_passed(job.verify());
}

TEST_CASE("a file with the 1f1b schedule gives the plan of 1f1b", "[schedule_files]") {
  const WrittenJob job(one_forward_one_backward);
  CHECK(job.plan({"strategy.schedule=mine.csv"}) == job.plan({"strategy.schedule=1f1b"}));
  CHECK(job.plan({"strategy.schedule=mine.csv"}) != job.plan({"strategy.schedule=gpipe"}));
}

TEST_CASE("a job file that a run has saved finds the schedule from any working directory", "[schedule_files]") {
  const JobFolder job;
  std::filesystem::create_directory(job.path() / "jobs");
  write_file(job.path() / "jobs/mine.csv", v_shaped);
  write_file(job.path() / "jobs/job.ini", read_file(job.path() / "job.ini") + "[strategy]\nschedule = mine.csv\n");
  const std::vector<std::string> settings = {"job.ranks=2",         "job.strategy=pp",      "model.layers=4",
                                             "data.microbatches=3", "data.text=corpus.txt", "train.steps=2"};

  const Ended ended = run_program(job.path(), with_settings({"jobs/job.ini"}, settings));

  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(job.losses().size() == 2);
  const Ended plan = run_program("/", {"plan", (job.path() / "run/job.ini").string()});
  INFO(plan.err);
  CHECK(plan.code == 0);
}

TEST_CASE("a schedule whose stages wait for each other is refused, with who waits for what", "[schedule_files]") {
  const std::string refusal = WrittenJob("0F0,0B0,0F1,0B1,0F2,0B2\n1F0,1F1,1B0,1B1,1F2,1B2\n").refusal();

  CHECK_THAT(refusal, StartsWith("shardrun: --set strategy.schedule: [strategy] schedule = /") &&
                          Contains("/mine.csv: the pipeline's actions wait for each other: "));
  CHECK_THAT(refusal, Contains("stage 0 at 0B0 waits for ") && Contains(" from stage 1"));
  CHECK_THAT(refusal, Contains("stage 1 at 1F1 waits for ") && Contains(" from stage 0"));
}

TEST_CASE("mistakes in a schedule file are reported with their places", "[schedule_files]") {
  CHECK_THAT(WrittenJob("0F0,0F1\n1F0,1Q0\n").refusal(),
             StartsWith("shardrun: strategy 'pp': /") && Contains("/mine.csv: line 2, cell 2: '1Q0' is no action"));
  CHECK_THAT(WrittenJob("0F0,0SEND_F0\n").refusal(), Contains("line 1, cell 2: '0SEND_F0' is communication"));
  CHECK_THAT(WrittenJob("0F0\n1F0\n2F0\n").refusal(),
             Contains("it has 3 lines, one a stage, and mesh axis 'pipe' has 2 stages"));
  CHECK_THAT(WrittenJob("").refusal(), Contains("it has 0 lines"));
  CHECK_THAT(WrittenJob("0F0\n0B0\n").refusal(), Contains("chunk 0 is on line 1 and on line 2"));
  CHECK_THAT(WrittenJob("0F0\n2F0\n").refusal(), Contains("it has chunk 2 and no chunk 1"));
  // Mistakes that can be seen only in the whole job.
  CHECK_THAT(WrittenJob("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1\n").refusal(),
             StartsWith("shardrun: --set strategy.schedule: [strategy] schedule = /") &&
                 Contains("/mine.csv: strategy pp: stage 1, action 1F2: it is missing"));
  CHECK_THAT(WrittenJob("0F3,0B3\n1F0,1B0\n").refusal(), Contains("action 0F3: a step has 3 microbatches"));
}

TEST_CASE("a schedule that does not fit the job is reported at the line that names its file", "[schedule_files]") {
  const JobFolder job;
  write_file(job.path() / "job.ini", read_file(job.path() / "job.ini") + "[strategy]\nschedule = mine.csv\n");
  const auto refusal = [&](const char* actions, const char* command) {
    write_file(job.path() / "mine.csv", actions);
    const Ended ended = run_program(
        job.path(), with_settings({command, "job.ini"}, {"job.ranks=2", "job.strategy=pp", "data.microbatches=2"}));
    CHECK(ended.code == 2);
    return ended.err;
  };
  const std::string place = "shardrun: job.ini:20: [strategy] schedule = " + (job.path() / "mine.csv").string() + ": ";
  for (const char* command : {"run", "plan", "verify"}) {
    CHECK_THAT(refusal("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", command),
               StartsWith(place + "the pipeline's actions wait for each other: stage 0 at 0B0 waits for "));
    CHECK_THAT(refusal("0F0,0F1,0B0,0B1\n1F0,1B0\n", command),
               StartsWith(place + "strategy pp: stage 1, action 1F1: it is missing"));
  }
}

TEST_CASE("a schedule file that cannot be read is reported at the line that names it", "[schedule_files]") {
  const JobFolder job;
  const auto refusal = [&](const std::string& schedule) {
    write_file(job.path() / "bad.ini", read_file(job.path() / "job.ini") + "[strategy]\nschedule = " + schedule + "\n");
    const Ended ended = run_program(job.path(), with_settings({"bad.ini"}, {"job.ranks=2", "job.strategy=pp"}));
    CHECK(ended.code == 2);
    CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
    return ended.err;
  };
  write_file(job.path() / "large.csv", "");
  std::filesystem::resize_file(job.path() / "large.csv", (std::uintmax_t{16} << 20U) + 1);
  write_file(job.path() / "binary.csv", std::string("0F0\0", 4));

  CHECK_THAT(refusal("1fb1"),
             StartsWith("shardrun: bad.ini:20: [strategy] schedule: cannot read '/") &&
                 Contains("/1fb1': No such file or directory") &&
                 Contains("expected one of gpipe, 1f1b, interleaved, zb-h1 (did you mean '1f1b'?), or a "
                          "text file of up to 16 MiB"));
  CHECK_THAT(refusal("large.csv"), Contains("bad.ini:20: ") && Contains("16777217 bytes, expected at most 16777216"));
  CHECK_THAT(refusal("binary.csv"), Contains("bad.ini:20: ") && Contains("it is no UTF-8 text, as byte 3 shows"));
  CHECK_THAT(refusal("."), Contains("bad.ini:20: ") && Contains("it is a folder, not a regular file"));
}

TEST_CASE("the pipeline example's schedule file gives the plan of zb-h1", "[schedule_files]") {
  const std::string example = SHARDRUN_SOURCE "/examples/pipeline/job.ini";
  const auto plan = [&](const std::vector<std::string>& settings) {
    const JobFolder job;
    const Ended ended = run_program(
        job.path(), with_settings(with_settings({"plan", example, "--json"}, {"data.text=corpus.txt"}), settings));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return json::parse(ended.out).as_object();
  };
  CHECK(plan({}) == plan({"strategy.schedule=zb-h1"}));
}
