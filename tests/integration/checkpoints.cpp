// Runs that go on from their checkpoints.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "core/base/utf8.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace json = boost::json;

namespace {

using Settings = std::vector<std::string>;

/// Settings of `second` replace those of `first`.
Settings joined(Settings first, const Settings& second) {
  for (const std::string& setting : second) {
    const std::string key = setting.substr(0, setting.find('=') + 1);
    std::erase_if(first, [&](const std::string& other) { return other.starts_with(key); });
    first.push_back(setting);
  }
  return first;
}

/// Runs job.ini of the folder, and returns how that ended. The run must succeed.
Ended resumed(const JobFolder& job, const Settings& settings, const std::string& from) {
  Ended ended = job.run(joined(settings, {"checkpoint.resume=" + from}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return ended;
}

double loss_of_step(const std::filesystem::path& output, std::int64_t step) {
  for (const json::object& line : read_json_lines(output / "metrics.jsonl")) {
    if (line.at("step").to_number<std::int64_t>() == step) {
      return line.at("loss").to_number<double>();
    }
  }
  FAIL("no step " << step);
  return 0;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Settings with two layers, dropout, microbatches of different sizes, and an evaluation.
const Settings all_kinds = {"train.steps=12",     "data.microbatches=3", "model.dropout=0.1",
                            "train.eval_every=4", "checkpoint.every=6",  "checkpoint.keep=0"};

}  // namespace

TEST_CASE("a run that went on has the bits of one that was not interrupted", "[program]") {
  const JobFolder job;
  const std::vector<Settings> kinds = {
      {"job.strategy=single"},
      {"job.strategy=dp", "job.ranks=2", "job.transport=shm"},
      {"job.strategy=zero2", "job.ranks=2", "job.transport=tcp", "train.precision=mixed", "train.moments=bfloat16",
       "train.beta2=0.95"},
      {"job.strategy=pp", "job.ranks=2", "train.optimizer=sgd", "train.momentum=0.9", "checkpoint.async=false"},
  };
  for (const Settings& kind : kinds) {
    INFO(kind.front());
    const Settings settings = joined(all_kinds, kind);
    const Ended whole = job.run(joined(settings, {"job.output=whole"}));
    INFO(whole.err);
    REQUIRE(whole.code == 0);
    CHECK(names_in(job.path() / "whole/checkpoints") == std::vector<std::string>{"step-000006", "step-000012"});
    resumed(job, joined(settings, {"job.output=later"}), "whole/checkpoints/step-000006");
    CHECK(read_file(job.path() / "later/weights.safetensors") == read_file(job.path() / "whole/weights.safetensors"));
    CHECK(computed_from(job.path() / "later", 0) == computed_from(job.path() / "whole", 7));
    const json::object summary = read_json(job.path() / "later/summary.json");
    CHECK(summary.at("first_step") == 6);
    CHECK(summary.at("steps") == 6);
    CHECK(summary.at("checkpoints").at("saved") == 1);
    const json::object of_whole = read_json(job.path() / "whole/summary.json");
    for (const json::value& rank : of_whole.at("ranks").as_array()) {
      const json::object& of_rank = rank.as_object();
      CHECK(of_rank.contains("snapshot_bytes") == (kind.back() != "checkpoint.async=false"));
      CHECK((!of_rank.contains("snapshot_bytes") || of_rank.at("snapshot_bytes") == of_rank.at("snapshot_peak_bytes")));
    }
    std::filesystem::remove_all(job.path() / "whole");
    std::filesystem::remove_all(job.path() / "later");
  }
}

TEST_CASE("a run resumes in any layout from a checkpoint of any other", "[program]") {
  const JobFolder job;
  const std::vector<Settings> layouts = {
      {"job.strategy=single"},
      {"job.strategy=dp", "job.ranks=2"},
      {"job.strategy=tp", "job.ranks=2"},
      {"job.strategy=pp", "job.ranks=2"},
      {"job.strategy=zero1", "job.ranks=2", "train.moments=bfloat16", "train.beta2=0.95"},
      {"job.strategy=zero2", "job.ranks=2", "train.precision=mixed"},
      {"job.strategy=zero3", "job.ranks=4"},
      {"job.strategy=3d", "mesh.data=2", "mesh.model=2", "mesh.pipe=2", "job.ranks=8", "strategy.zero=1"},
      {"job.strategy=hsdp", "mesh.replica=2", "mesh.shard=2", "job.ranks=4"},
  };
  const Settings common = {"data.batch=8", "data.microbatches=2", "train.steps=21", "train.eval_every=100",
                           "checkpoint.every=20"};
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    const Ended ended = job.run(joined(joined(common, layouts[from]), {fmt::format("job.output=from{}", from)}));
    INFO(layouts[from].front() << " " << ended.err);
    REQUIRE(ended.code == 0);
    const auto loss_as = [&](const Settings& layout) {
      resumed(job, joined(joined(common, layout), {"job.output=to", "checkpoint.every=0"}),
              fmt::format("from{}/checkpoints/step-000020", from));
      const double loss = loss_of_step(job.path() / "to", 21);
      std::filesystem::remove_all(job.path() / "to");
      return loss;
    };
    const double in_float32 = loss_as({"job.strategy=single"});
    const double in_mixed = loss_as({"job.strategy=single", "train.precision=mixed"});
    const auto check = [&](double loss, const Settings& layout) {
      const double expected = layout.back() == "train.precision=mixed" ? in_mixed : in_float32;
      CHECK(std::abs(loss - expected) <= 1e-5 * expected);
    };
    check(loss_of_step(job.path() / fmt::format("from{}", from), 21), layouts[from]);
    const auto every = depth<std::size_t>(1, 3, 3);  // each layout is read as some others, and written by some others
    for (std::size_t to = 1 + from % every; to < layouts.size(); to += every) {
      INFO("read as " << layouts[to].front());
      check(loss_as(layouts[to]), layouts[to]);
    }
  }
}

TEST_CASE("orders of ranks give the same losses, and a checkpoint moves between them", "[program]") {
  const JobFolder job;
  const Settings common = {"job.strategy=3d", "job.ranks=4",   "mesh.data=2",        "mesh.model=2",
                           "strategy.zero=1", "train.steps=6", "checkpoint.every=4", "train.eval_every=100"};
  const auto losses = [&](const std::string& output) {
    std::vector<double> found;
    for (const json::object& line : read_json_lines(job.path() / output / "metrics.jsonl")) {
      found.push_back(line.at("loss").to_number<double>());
    }
    return found;
  };
  const Ended usual = job.run(joined(common, {"job.output=usual"}));
  INFO(usual.err);
  REQUIRE(usual.code == 0);
  const std::vector<double> expected = losses("usual");
  REQUIRE(expected.size() == 6);
  for (const std::string order : {"0, 2, 1, 3", "3, 1, 0, 2"}) {
    INFO(order);
    std::filesystem::remove_all(job.path() / "other");
    const Ended other = job.run(joined(common, {"job.output=other", "mesh.order=" + order}));
    INFO(other.err);
    REQUIRE(other.code == 0);
    CHECK(losses("other") == expected);
    resumed(job, joined(common, {"job.output=moved", "checkpoint.every=0", "mesh.order=1, 0, 3, 2"}),
            "other/checkpoints/step-000004");
    CHECK(losses("moved") == std::vector<double>(expected.begin() + 4, expected.end()));
    std::filesystem::remove_all(job.path() / "moved");
  }
  CHECK_THAT(read_file(job.path() / "other/checkpoints/step-000004/manifest.json"),
             Contains("data 2, model 2, order 3 1 0 2"));
}

TEST_CASE("a run with another batch size resumes at the first unseen sample", "[program]") {
  const JobFolder job;
  const Settings still = {"train.learning_rate=1e-30", "train.weight_decay=0", "train.schedule=constant",
                          "train.eval_every=1000"};  // so small that parameters do not change
  REQUIRE(job.run(joined(still, {"job.output=first", "train.steps=6", "checkpoint.every=6"})).code == 0);
  const std::string saved = "first/checkpoints/step-000006";
  resumed(job, joined(still, {"job.output=same", "train.steps=7"}), saved);
  resumed(job, joined(still, {"job.output=ones", "train.steps=13", "data.batch=1"}), saved);
  double sum = 0;
  for (std::int64_t step = 7; step <= 13; ++step) {
    sum += loss_of_step(job.path() / "ones", step);
  }
  CHECK(std::abs(sum / 7 - loss_of_step(job.path() / "same", 7)) < 1e-6);  // the same seven samples
  const json::object manifest = read_json(job.path() / "ones/checkpoints/step-000013/manifest.json");
  CHECK(manifest.at("samples") == 6 * 7 + 7 * 1);
}

TEST_CASE("a run that is asked to stop saves a checkpoint, and prints the command to go on", "[program]") {
  const JobFolder job;
  const Settings settings = {"train.steps=1000000", "train.schedule=constant", "train.log_every=1",
                             "train.eval_every=1000000000"};
  for (const Settings& kind : std::vector<Settings>{{}, {"job.strategy=dp", "job.ranks=2"}}) {
    bool asked = false;
    const Ended stopped = run_program(
        job.path(),
        with_settings({"job.ini"}, joined(joined(settings, kind), {"job.output=stopped", "checkpoint.every=7"})),
        [&](pid_t process, std::string_view out) {
          if (!asked && out.find("step 9/") != std::string_view::npos) {
            asked = true;
            ::kill(process, SIGTERM);
          }
        });
    INFO(stopped.err);
    REQUIRE(asked);
    CHECK(stopped.code == 75);
    CHECK_THAT(stopped.err, Contains("to go on: shardrun run job.ini") && Contains("--resume\n"));
    const json::object summary = read_json(job.path() / "stopped/summary.json");
    CHECK(summary.at("status") == "stopped");
    CHECK(summary.at("exit_code") == 75);
    const std::int64_t step = summary.at("steps").to_number<std::int64_t>();
    CHECK(summary.at("checkpoints").at("last_step") == step);
    CHECK_FALSE(std::filesystem::exists(job.path() / "stopped/weights.safetensors"));

    // It goes on where it was, in the same folder, and ends like a run that was not stopped.
    const Settings to_end = joined(joined(settings, kind), {fmt::format("train.steps={}", step + 3)});
    resumed(job, joined(to_end, {"job.output=stopped"}), "auto");
    const Ended whole = job.run(joined(to_end, {"job.output=whole"}));
    REQUIRE(whole.code == 0);
    CHECK(computed_from(job.path() / "stopped", 0) == computed_from(job.path() / "whole", 0));
    CHECK(read_file(job.path() / "stopped/weights.safetensors") == read_file(job.path() / "whole/weights.safetensors"));
    std::filesystem::remove_all(job.path() / "stopped");
    std::filesystem::remove_all(job.path() / "whole");
  }
}

TEST_CASE("a run that goes on tells no validation loss that an earlier one has measured", "[program]") {
  const JobFolder job;
  const Settings kind = GENERATE(Settings{}, Settings{"job.strategy=dp", "job.ranks=2"});
  REQUIRE(job.run(joined(kind, {"train.steps=2", "train.eval_every=2", "checkpoint.every=2"})).code == 0);
  const json::value measured = job.summary().at("val_loss");
  REQUIRE(measured.is_double());
  const Settings on = {"train.steps=1000000", "train.eval_every=0", "train.log_every=1", "checkpoint.resume=auto"};
  bool asked = false;

  const Ended stopped =
      run_program(job.path(), with_settings({"job.ini"}, joined(kind, on)), [&](pid_t process, std::string_view out) {
        if (!asked && out.find("step 4/") != std::string_view::npos) {
          asked = true;
          ::kill(process, SIGTERM);
        }
      });

  CHECK(stopped.code == 75);
  CHECK_THAT(stopped.out, Contains("stopped after ") && !Contains("validation loss"));
  CHECK(job.summary().at("val_loss").is_null());
  const std::string last = fmt::format("{:06}", 2 + job.summary().at("steps").to_number<std::int64_t>());
  CHECK(read_json(job.path() / "run/checkpoints" / ("step-" + last) / "manifest.json").at("val_loss") == measured);
}

TEST_CASE("a run stops and saves before its time limit", "[program]") {
  const JobFolder job;
  const Ended ended = job.run({"train.steps=1000000000", "train.eval_every=1000000000", "checkpoint.keep=1",
                               "checkpoint.minutes=0.01", "job.time_limit=3"});
  INFO(ended.err);
  CHECK(ended.code == 75);
  const json::object summary = job.summary();
  CHECK(summary.at("status") == "stopped");
  CHECK(summary.at("checkpoints").at("last_step") == summary.at("steps"));
  CHECK(summary.at("seconds").to_number<double>() < 3);
  CHECK(summary.at("checkpoints").at("saved").to_number<std::int64_t>() > 1);  // those by the clock, and the last one
  CHECK_THAT(ended.out, Contains("[job] time_limit"));
}

TEST_CASE("a run refuses to replace checkpoints, and keeps as many as keep and keep_every say", "[program]") {
  const JobFolder job;
  const Settings settings = {"train.steps=12", "train.eval_every=0", "checkpoint.every=2", "checkpoint.keep=2",
                             "checkpoint.keep_every=6"};
  REQUIRE(job.run(settings).code == 0);
  const std::filesystem::path folder = job.path() / "run/checkpoints";
  CHECK(names_in(folder) == std::vector<std::string>{"step-000006", "step-000010", "step-000012"});

  const Ended anew = job.run(settings);
  CHECK(anew.code == 2);
  CHECK_THAT(anew.err, Contains("has a checkpoint of step 12 already") && Contains("--resume"));
  const Ended between = job.run(joined(settings, {"checkpoint.resume=run/checkpoints/step-000006"}));
  CHECK(between.code == 2);
  CHECK_THAT(between.err, Contains("would begin after step 6"));
  const Ended shorter = job.run(joined(settings, {"checkpoint.resume=auto", "train.steps=11"}));
  CHECK(shorter.code == 2);
  CHECK_THAT(shorter.err, Contains("is of step 12, and the job ends after 11"));
  CHECK(names_in(folder) == std::vector<std::string>{"step-000006", "step-000010", "step-000012"});

  const Ended nothing = job.run(joined(settings, {"checkpoint.resume=auto"}));  // the run has ended already
  CHECK(nothing.code == 0);
  CHECK(computed_from(job.path() / "run", 0).size() == 12);
  const Ended further =
      run_program(job.path(), with_settings({"job.ini", "--resume"}, joined(settings, {"train.steps=16"})));
  INFO(further.err);
  CHECK(further.code == 0);
  CHECK(names_in(folder) == std::vector<std::string>{"step-000006", "step-000012", "step-000014", "step-000016"});
}

TEST_CASE("a finished run stays unchanged with --resume, and a run without checkpoints replaces none", "[program]") {
  const TemporaryFolder folder;
  write_file(folder / "life.ini", "[job]\ntask = iterate\noutput = run\n[plugins]\npath = " SHARDRUN_EXAMPLE_PROGRAMS
                                  "\n[model]\nname = life\n[iterate]\nsteps = 6\n");
  const auto run = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"life.ini"};
    all.insert(all.end(), words.begin(), words.end());
    return run_program(folder.path(), all);
  };
  REQUIRE(run({"--set", "checkpoint.every=2"}).code == 0);
  const std::string outputs = read_file(folder / "run/outputs/alive.npy");
  const std::string summary = read_file(folder / "run/summary.json");
  const Ended again = run({"--resume"});
  INFO(again.out << again.err);
  CHECK(again.code == 0);
  CHECK_THAT(again.out, Contains("is of the last step, 6, and the results are there"));
  CHECK(read_file(folder / "run/outputs/alive.npy") == outputs);
  CHECK(read_file(folder / "run/summary.json") == summary);
  const Ended without = run({});
  CHECK(without.code == 2);
  CHECK_THAT(without.err, Contains("has a checkpoint of step 6 already"));

  // The next run begins at the last state of this one. Its count of steps continues, too.
  REQUIRE(run({"--set", "iterate.from=run/state.safetensors", "--set", "job.output=next", "--set", "checkpoint.every=2",
               "--set", "iterate.save_every=100"})
              .code == 0);
  CHECK(read_json(folder / "next/checkpoints/step-000012/manifest.json").at("base") == 6);
}

TEST_CASE("two runs do not save in one folder at once", "[program]") {
  const JobFolder job;
  bool refused = false;
  const Settings settings = {"train.steps=1000000", "train.schedule=constant", "train.eval_every=1000000000",
                             "checkpoint.every=100"};
  const Ended first =
      run_program(job.path(), with_settings({"job.ini"}, settings), [&](pid_t process, std::string_view out) {
        if (!refused && out.find("checkpoint of step") != std::string_view::npos) {
          ::kill(process, SIGSTOP);  // otherwise it could save another checkpoint meanwhile
          const Ended second = job.run(
              joined(settings, {"job.output=other", "checkpoint.folder=run/checkpoints", "checkpoint.resume=auto"}));
          refused =
              second.code == 1 && second.err.find("another run writes to the checkpoints in") != std::string::npos;
          INFO(second.err);
          CHECK(refused);
          refused = true;
          ::kill(process, SIGTERM);
          ::kill(process, SIGCONT);
        }
      });
  CHECK(refused);
  CHECK(first.code == 75);
}

TEST_CASE("the command that a stopped run prints to go on names the run's own folder", "[program]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=6", "checkpoint.every=3", "job.output=first"}).code == 0);
  bool asked = false;
  const Ended stopped =
      run_program(job.path(),
                  with_settings({"job.ini", "--resume=first/checkpoints/step-000003"},
                                {"train.steps=1000000", "train.schedule=constant", "train.log_every=1",
                                 "train.eval_every=1000000000", "job.output=a folder's"}),
                  [&](pid_t process, std::string_view out) {
                    if (!asked && out.find("step 9/") != std::string_view::npos) {
                      asked = true;
                      ::kill(process, SIGTERM);
                    }
                  });
  CHECK(stopped.code == 75);
  CHECK_THAT(stopped.err, Contains("to go on: shardrun run job.ini --set") &&
                              Contains("'job.output=a folder'\\''s' --resume\n") && !Contains("--resume=first"));
}

TEST_CASE("a job whose output has {time} resumes from the folder that is named", "[program]") {
  const JobFolder job;
  const Settings settings = {"train.steps=1000000", "train.schedule=constant", "train.log_every=1",
                             "train.eval_every=1000000000", "job.output=run-{time}"};
  const Ended refused = run_program(job.path(), with_settings({"job.ini", "--resume"}, settings));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("[job] output has {time}") && Contains("--resume=FOLDER"));

  bool asked = false;
  const Ended stopped = run_program(job.path(), with_settings({"job.ini"}, joined(settings, {"checkpoint.every=4"})),
                                    [&](pid_t process, std::string_view out) {
                                      if (!asked && out.find("step 9/") != std::string_view::npos) {
                                        asked = true;
                                        ::kill(process, SIGTERM);
                                      }
                                    });
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 75);
  const std::size_t at = stopped.err.find(" --resume=run-2");
  REQUIRE(at != std::string::npos);
  const std::string folder = stopped.err.substr(at + 10, stopped.err.find('\n', at) - at - 10);
  CHECK(std::filesystem::exists(job.path() / folder / "checkpoints"));
  // People often write a folder with a slash at its end.
  const std::int64_t step = read_json(job.path() / folder / "summary.json").at("steps").as_int64();
  const Ended further = run_program(
      job.path(),
      with_settings({"job.ini", "--resume=" + folder + "/"},
                    joined(settings, {fmt::format("train.steps={}", step + 2), "job.output=later-{time}"})));
  INFO(further.out << further.err);
  CHECK(further.code == 0);
  CHECK_THAT(further.out, Contains(fmt::format("goes on after step {} from ", step)));
}

TEST_CASE("a run that was stopped after its last step resumes and ends as finished", "[program]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=4", "checkpoint.every=2"}).code == 0);
  boost::json::object summary = job.summary();
  summary["status"] = "stopped";  // as if the signal had come while it sampled
  write_file(job.path() / "run/summary.json", boost::json::serialize(summary));
  const Ended ended = run_program(job.path(), with_settings({"job.ini", "--resume"}, {"train.steps=4"}));
  INFO(ended.out << ended.err);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.out, Contains("goes on after step 4 from "));
  CHECK(job.summary().at("status") == "finished");
}

TEST_CASE("plan says where a run would begin", "[program]") {
  const JobFolder job;
  const Settings settings = {"train.steps=4", "checkpoint.every=2"};
  const auto beginning = [&](const Settings& more, const std::vector<std::string>& words = {}) {
    std::vector<std::string> all = {"plan", "job.ini", "--json"};
    all.insert(all.end(), words.begin(), words.end());
    const Ended ended = run_program(job.path(), with_settings(all, joined(settings, more)));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return json::parse(ended.out).at("beginning").as_object();
  };
  CHECK(beginning({}, {"--resume"}).at("how") == "at the start");
  REQUIRE(job.run(settings).code == 0);
  const std::string summary = read_file(job.path() / "run/summary.json");
  CHECK(beginning({}, {"--resume"}).at("how") == "nothing left");
  CHECK_THAT(std::string(beginning({}).at("refusal").as_string()), Contains("has a checkpoint of step 4 already"));
  const json::object further = beginning({"train.steps=6"}, {"--resume"});
  CHECK(further.at("how") == "resumed");
  CHECK(further.at("step") == 4);
  CHECK_THAT(std::string(further.at("checkpoint").as_string()), Contains("run/checkpoints/step-000004"));
  CHECK(beginning({"train.steps=6", "job.output=b"}, {"--resume=run/checkpoints/step-000002/"}).at("step") == 2);
  const json::object other = beginning({"train.steps=6", "job.seed=7"}, {"--resume"});
  CHECK(other.at("how") == "refused");
  CHECK_THAT(std::string(other.at("refusal").as_string()), Contains("with the seed 1337, and this job has 7"));
  const json::object forced = beginning({"train.steps=6", "job.seed=7"}, {"--resume", "--force-data"});
  CHECK(forced.at("how") == "resumed");
  CHECK_THAT(std::string(forced.at("notices").at(0).as_string()), Contains("with the seed 1337, and this job has 7"));
  CHECK(read_file(job.path() / "run/summary.json") == summary);
  write_file(job.path() / "taken", "");
  CHECK_THAT(
      std::string(beginning({"checkpoint.folder=taken", "job.output=b"}, {"--resume"}).at("refusal").as_string()),
      Contains("is to be the folder of checkpoints, and is a file"));
  CHECK_THAT(std::string(beginning({"job.output={time}"}, {"--resume"}).at("refusal").as_string()),
             Contains("[job] output has {time}"));
  CHECK_THAT(run_program(job.path(), with_settings({"plan", "job.ini"}, {"train.steps=4"})).out,  // no [checkpoint]
             Contains("\na run would be refused: ") && Contains("has a checkpoint of step 4 already"));
  CHECK_THAT(
      run_program(job.path(), with_settings({"plan", "job.ini", "--resume"}, joined(settings, {"train.steps=6"}))).out,
      Contains("\na run would go on after step 4 from run/checkpoints/step-000004\n"));
}

TEST_CASE("a run resumes with other options of its model if the parameters are the same", "[program]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=4", "checkpoint.every=4"}).code == 0);
  const Ended other = job.run({"train.steps=6", "checkpoint.resume=auto", "model.dropout=0.1"});
  INFO(other.err);
  CHECK(other.code == 0);
  CHECK_THAT(other.out, Contains("was saved with the model 'dropout = 0', and this job has 'dropout = 0.1': it has the "
                                 "same parameters"));
  CHECK(job.metrics().size() == 6);
  const Ended wider = job.run({"train.steps=8", "checkpoint.resume=auto", "model.width=64"});
  CHECK(wider.code == 2);
  CHECK_THAT(wider.err, Contains("was saved with the model '") && Contains("width = 64") &&
                            Contains("go on with the same model and options"));
}

TEST_CASE("a stop within an evaluation leaves a line a step", "[program]") {
  const JobFolder job;
  const Settings settings = {"train.steps=6",     "train.eval_every=1",   "data.split=0.2",
                             "data.eval_batch=1", "checkpoint.every=100", "train.log_every=1"};
  const std::filesystem::path metrics = job.path() / "run/metrics.jsonl";
  const auto written = [&] {  // lines, of which the last may be half written
    return std::filesystem::exists(metrics) ? std::ranges::count(read_file(metrics), '\n') : 0;
  };
  for (const std::ptrdiff_t lines : {1, 3}) {
    const std::ptrdiff_t least = std::max(lines, written() + 1);  // then the run has begun
    bool is_asked = false;
    const Ended stopped =
        run_program(job.path(), with_settings({"job.ini", "--resume"}, settings), [&](pid_t process, std::string_view) {
          // Nearly all the time goes into evaluations.
          if (!is_asked && written() >= least) {
            is_asked = kill(process, SIGTERM) == 0;
          }
        });
    CHECK(stopped.code == 75);
  }
  REQUIRE(run_program(job.path(), with_settings({"job.ini", "--resume"}, settings)).code == 0);
  std::vector<std::int64_t> steps;
  for (const json::object& line : job.metrics()) {
    steps.push_back(line.at("step").to_number<std::int64_t>());
    CHECK(line.contains("loss"));
    CHECK(line.contains("val_loss"));
  }
  CHECK(steps == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("resuming with other data is refused, or reported with --force-data", "[program]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=4", "checkpoint.every=2"}).code == 0);
  write_file(job.path() / "other.txt", read_file(job.path() / "corpus.txt") + "a");
  const Settings further = {"train.steps=6", "data.text=other.txt"};
  const Ended refused = run_program(job.path(), with_settings({"job.ini", "--resume"}, further));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("was saved with the data ") && Contains("and this job has '") &&
                              Contains("other.txt' (") && Contains("--force-data accepts that"));
  // The two tokenizers differ far from their beginning. The message shows that part, and cuts no character in two.
  const auto write_letters = [&](const std::string& last) {
    std::string letters;
    for (int i = 0; i < 60; ++i) {
      letters += fmt::format("\xe4\xb8{}", static_cast<char>(0x80 + i));
    }
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += letters + last;
    }
    write_file(job.path() / "letters.txt", text);
  };
  const Settings on_letters = {"data.text=letters.txt", "job.output=letters", "train.steps=2", "checkpoint.every=2"};
  write_letters("\xe4\xb9\x80");
  REQUIRE(job.run(on_letters).code == 0);
  write_letters("\xe4\xb9\x81");
  const Ended plan =
      run_program(job.path(), with_settings({"plan", "job.ini", "--resume", "--force-data"}, on_letters));
  INFO(plan.out << plan.err);
  CHECK_THAT(plan.out, Contains("was saved with the tokenizer …"));
  CHECK_FALSE(shardrun::first_invalid_utf8(plan.out));

  const Ended forced = run_program(job.path(), with_settings({"job.ini", "--resume", "--force-data"}, further));
  INFO(forced.out << forced.err);
  CHECK(forced.code == 0);
  CHECK_THAT(forced.out, Contains("warning: '") && Contains("other.txt' (") && Contains("as --force-data accepts"));
}

TEST_CASE("a simulation resumes from a checkpoint", "[program]") {
  const TemporaryFolder folder;
  write_file(folder / "heat.ini",
             "[job]\ntask = iterate\n[model]\nname = heat2d\nrows = 13\ncolumns = 17\n[iterate]\nsteps = 30\n"
             "[checkpoint]\nevery = 10\n");
  const auto run = [&](const Settings& settings) {
    const Ended ended = run_program(folder.path(), with_settings({"heat.ini"}, settings));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
  };
  run({"job.output=whole"});
  run({"job.output=later", "job.ranks=2", "job.strategy=named", "mesh.parts=2", "sharding.x=parts",
       "checkpoint.resume=whole/checkpoints/step-000010"});
  CHECK(read_file(folder / "later/state.safetensors") == read_file(folder / "whole/state.safetensors"));
}

TEST_CASE("--resume does not begin anew over the results of a run without checkpoints", "[checkpoints]") {
  const JobFolder job;
  const auto run = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = with_settings({"job.ini"}, {"train.steps=2"});
    all.insert(all.end(), words.begin(), words.end());
    return run_program(job.path(), all);
  };
  REQUIRE(run({}).code == 0);
  const auto files = [&] {
    std::string all;
    for (const char* name : {"summary.json", "metrics.jsonl", "job.ini", "weights.safetensors", ".lock"}) {
      all += read_file(job.path() / "run" / name);
    }
    return all;
  };
  const std::string before = files();
  const Ended plan = run_program(job.path(), {"plan", "job.ini", "--resume"});
  CHECK_THAT(plan.out, Contains("a run would be refused: ") && Contains("has the results of a run"));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--resume"},
        {"--set", "checkpoint.resume=auto", "--set", "job.strategy=dp", "--set", "job.ranks=2"}}) {
    const Ended refused = run(words);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err, Contains("checkpoints' has no checkpoint to go on from") && Contains("--replace"));
    CHECK(files() == before);
  }
  // Weights stay if a later run is killed before its end.
  std::filesystem::remove(job.path() / "run/summary.json");
  CHECK(run({"--resume"}).code == 2);
  const Ended replacing = run({"--resume", "--replace"});
  INFO(replacing.err);
  CHECK(replacing.code == 0);
  CHECK(names_in(job.path() / "run/checkpoints") == std::vector<std::string>{"step-000002"});
}

TEST_CASE("--replace also replaces the checkpoints in the output folder, and no others", "[checkpoints]") {
  const JobFolder job;
  const auto run = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = with_settings({"job.ini"}, {"train.steps=2"});
    all.insert(all.end(), words.begin(), words.end());
    return run_program(job.path(), all);
  };
  // The option brings the section [checkpoint], so the run saves one at its end.
  REQUIRE(run({"--resume"}).code == 0);
  REQUIRE(std::filesystem::exists(job.path() / "run/checkpoints/step-000002"));
  const Ended plain = run({});
  CHECK(plain.code == 2);
  CHECK_THAT(plain.err, Contains("or remove what is there with --replace"));
  const Ended replacing = run({"--replace"});
  INFO(replacing.err);
  CHECK(replacing.code == 0);
  CHECK(names_in(job.path() / "run/checkpoints").empty());
  CHECK(run({}).code == 0);

  const std::vector<std::string> elsewhere = {"--set", "checkpoint.folder=saved"};
  REQUIRE(run(elsewhere).code == 0);
  const Ended kept = run({elsewhere[0], elsewhere[1], "--replace"});
  CHECK(kept.code == 2);
  CHECK(kept.err.find("--replace") == std::string::npos);
  CHECK(std::filesystem::exists(job.path() / "saved/step-000002"));
}
