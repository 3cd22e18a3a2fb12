#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/npy.h"
#include "tests/support/processes.h"
#include "tests/support/text_job.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
namespace json = boost::json;

namespace {

std::set<std::string> files_below(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      names.insert(std::filesystem::relative(entry.path(), folder).string());
    }
  }
  return names;
}

std::set<std::string> keys(const json::object& object) {
  std::set<std::string> names;
  for (const auto& [key, value] : object) {
    names.insert(std::string(key));
  }
  return names;
}

double number(const json::object& object, std::string_view key) { return object.at(key).to_number<double>(); }

const json::object& rank(const json::object& summary) { return summary.at("ranks").as_array().at(0).as_object(); }

double worst_relative(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(found[i] / expected[i] - 1));
  }
  return worst;
}

}  // namespace

TEST_CASE("a run leaves metrics, summary, log, sample and weights", "[program]") {
  const JobFolder job;
  const Ended ended = job.run({"train.sample=20"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.err.empty());
  CHECK(files_below(job.path() / "run") == std::set<std::string>{".lock", "job.ini", "log/rank-0.log", "metrics.jsonl",
                                                                 "sample.txt", "summary.json", "weights.safetensors"});

  const std::vector<json::object> metrics = job.metrics();
  REQUIRE(metrics.size() == 30);
  const std::set<std::string> fields = {"step",          "loss",      "grad_norm",  "lr",
                                        "tokens_per_s",  "step_s",    "comm_s",     "comm_exposed_s",
                                        "comm_hidden_s", "bandwidth", "flops_per_s"};
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    std::set<std::string> expected = fields;
    if ((i + 1) % 10 == 0) {
      expected.insert("val_loss");
    }
    CHECK(keys(metrics[i]) == expected);
    CHECK(number(metrics[i], "step") == static_cast<double>(i + 1));
    CHECK(number(metrics[i], "grad_norm") > 0);
  }
  CHECK(number(metrics[0], "lr") == 0.01);
  CHECK(number(metrics[29], "loss") < 0.9 * number(metrics[0], "loss"));
  CHECK(number(metrics[29], "val_loss") < number(metrics[9], "val_loss"));

  const json::object summary = job.summary();
  CHECK(keys(summary) ==
        std::set<std::string>{"status",   "exit_code",  "error",      "steps",        "seconds",        "loss",
                              "val_loss", "parameters", "data_bytes", "tokens_per_s", "step_ms_median", "checks",
                              "check_s",  "saved",      "ending_s",   "version",      "command",        "host",
                              "started",  "ended",      "ranks"});
  CHECK(summary.at("command") == json::array{"shardrun", "run", "job.ini", "--set", "train.sample=20"});
  CHECK(summary.at("started").as_string().size() == std::string("2026-11-22T14:15:03.000Z").size());
  CHECK(summary.at("started").as_string() < summary.at("ended").as_string());
  CHECK(summary.at("status") == "finished");
  CHECK(number(summary, "exit_code") == 0);
  CHECK(summary.at("saved") == "new");
  CHECK(number(summary, "steps") == 30);
  CHECK(summary.at("loss") == metrics[29].at("loss"));
  CHECK(summary.at("val_loss") == metrics[29].at("val_loss"));
  CHECK(number(summary, "tokens_per_s") > 0);
  CHECK(read_file(job.path() / "run/log/rank-0.log").find("finished after 30 steps") != std::string::npos);
  CHECK(ended.out.find("sample:\n") != std::string::npos);
  CHECK(read_file(job.path() / "run/sample.txt").size() == 20);
}

TEST_CASE("a run that replaces another says so, and leaves only its own results", "[program]") {
  const JobFolder job;
  const std::string ranks = GENERATE("1", "2");
  const auto settings = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"job.ranks=" + ranks, ranks == "1" ? "job.strategy=single" : "job.strategy=dp"});
    return more;
  };
  REQUIRE(job.run(settings({"train.sample=20"})).code == 0);
  REQUIRE(std::filesystem::exists(job.path() / "run/sample.txt"));

  SECTION("one without a sample") {
    const Ended second = job.run(settings({"train.steps=3"}));
    CHECK(second.code == 0);
    CHECK(second.out.find("replaces the run in run (finished after 30 steps, 20") != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(job.path() / "run/sample.txt"));
  }
  SECTION("one that fails: the older weights are there until there are others") {
    const std::string weights = read_file(job.path() / "run/weights.safetensors");
    CHECK(job.run(settings({"train.learning_rate=1e20", "train.clip=1e30", "train.warmup=0"})).code == 1);
    CHECK_FALSE(std::filesystem::exists(job.path() / "run/sample.txt"));
    CHECK(read_file(job.path() / "run/weights.safetensors") == weights);
  }
  SECTION("one that is refused touches nothing") {
    const std::string summary = read_file(job.path() / "run/summary.json");
    CHECK(job.run(settings({"model.heads=3"})).code == 2);
    CHECK(read_file(job.path() / "run/summary.json") == summary);
    CHECK(std::filesystem::exists(job.path() / "run/sample.txt"));
  }
}

TEST_CASE("a run that another replaces is kept until that one has finished", "[program]") {
  const JobFolder job;
  const std::string ranks = GENERATE("1", "2");
  const auto settings = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"job.ranks=" + ranks, ranks == "1" ? "job.strategy=single" : "job.strategy=dp"});
    return with_settings({"job.ini"}, more);
  };
  const auto stopped = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = settings({"train.steps=1000000", "train.log_every=1"});
    words.insert(words.end(), more.begin(), more.end());
    bool asked = false;
    return run_program(job.path(), words, [&](pid_t process, std::string_view out) {
      if (!asked && out.find("step 2/") != std::string_view::npos) {
        asked = true;
        ::kill(process, SIGINT);
      }
    });
  };
  const auto contents = [&](const std::filesystem::path& folder) {
    std::map<std::string, std::string> found;
    for (const std::string& name : files_below(folder)) {
      found[name] = name == ".lock" || name.starts_with("earlier-run/") ? "" : read_file(folder / name);
    }
    found.erase(".lock");
    return found;
  };
  REQUIRE(run_program(job.path(), settings({"train.steps=3", "train.sample=20"})).code == 0);
  const auto earlier = contents(job.path() / "run");
  REQUIRE(earlier.contains("sample.txt"));
  const std::filesystem::path kept = job.path() / "run/earlier-run";

  const Ended first = stopped({});
  CHECK(first.code == 128 + SIGINT);
  CHECK_THAT(first.out, Contains("replaces the run in run (finished after 3 steps, ") &&
                            Contains("; it is kept in run/earlier-run until this run has finished\n") &&
                            Contains("; results in run, those of an earlier run in run/earlier-run\n"));
  CHECK(contents(kept) == earlier);
  CHECK(read_file(job.path() / "run/weights.safetensors") != earlier.at("weights.safetensors"));
  CHECK_THAT(stopped({}).out, Contains("; the one before is kept in run/earlier-run until"));
  CHECK(contents(kept) == earlier);
  CHECK(run_program(job.path(), {"generate", "run/earlier-run", "--tokens", "3"}).code == 0);
  CHECK(run_program(job.path(), {"report", "run/earlier-run"}).code == 0);
  std::filesystem::copy(kept, job.path() / "back", std::filesystem::copy_options::recursive);
  CHECK_THAT(run_program(job.path(), settings({"train.steps=3", "job.output=back"})).out,
             Contains("replaces the run in back (finished after 3 steps, "));  // it is the folder of a run

  CHECK(run_program(job.path(), settings({"train.steps=3"})).code == 0);
  CHECK_FALSE(std::filesystem::exists(kept));
  CHECK(stopped({"--replace"}).code == 128 + SIGINT);
  CHECK_FALSE(std::filesystem::exists(kept));

  REQUIRE(run_program(job.path(), settings({"train.steps=3"})).code == 0);
  CHECK(stopped({}).code == 128 + SIGINT);
  const Ended in_kept = run_program(job.path(), {"run/earlier-run/job.ini", "--replace"});
  CHECK(in_kept.code == 2);
  CHECK_THAT(in_kept.err, Contains("is the job file's own folder"));
  CHECK(std::filesystem::exists(kept / "job.ini"));
  CHECK(run_program(job.path(), settings({"train.steps=3"})).code == 0);
  std::filesystem::create_directories(kept);
  const Ended foreign = run_program(job.path(), settings({"train.steps=3"}));
  CHECK(foreign.code == 2);
  CHECK_THAT(foreign.err, Contains("has 'earlier-run', which no run has written"));
  CHECK(std::filesystem::exists(kept));
}

TEST_CASE("a run of a different job is replaced only if --replace says so", "[program]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const std::string summary = read_file(job.path() / "run/summary.json");
  std::filesystem::copy_file(job.path() / "corpus.txt", job.path() / "other.txt");
  std::filesystem::copy_file(job.path() / "job.ini", job.path() / "other.ini");
  const std::vector<std::string> other_data = {"job.ini", "--set", "data.text=other.txt", "--set", "train.steps=1"};

  const Ended refused = run_program(job.path(), other_data);
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("run has a run of a different job ([data] text = ") &&
                              Contains("other.txt), which this run would replace") && Contains("--replace"));
  const Ended by_name = run_program(job.path(), {"other.ini", "--set", "train.steps=2"});
  CHECK(by_name.code == 2);
  CHECK_THAT(by_name.err, Contains("a different job (of job.ini, here other.ini)"));
  CHECK(read_file(job.path() / "run/summary.json") == summary);
  CHECK_THAT(run_program(job.path(), {"plan", "other.ini", "--set", "checkpoint.every=1"}).out,
             Contains("a run would be refused: ") && Contains("of a different job"));

  std::vector<std::string> replacing = other_data;
  replacing.push_back("--replace");
  CHECK(run_program(job.path(), replacing).code == 0);
}

TEST_CASE("a training of no steps evaluates", "[program]") {
  const JobFolder job;
  const std::string ranks = GENERATE("1", "2");
  const std::vector<std::string> split = {"job.ranks=" + ranks,
                                          ranks == "1" ? "job.strategy=single" : "job.strategy=dp"};
  const auto run = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), split.begin(), split.end());
    const Ended ended = job.run(settings);
    INFO(ended.err);
    CHECK(ended.code == 0);
    return job.metrics();
  };
  const auto first = run({"train.steps=0"});
  REQUIRE(first.size() == 1);
  CHECK(first[0].at("step") == 0);
  CHECK(number(first[0], "val_loss") > 1);
  CHECK(job.summary().at("val_loss") == first[0].at("val_loss"));
  CHECK(job.summary().at("steps") == 0);

  const auto trained = run({"train.steps=4", "checkpoint.every=4"});
  // The job has no more steps than the checkpoint: the trained model is only evaluated, in another folder.
  const auto again = run({"train.steps=4", "checkpoint.resume=run", "job.output=again"});
  const auto lines = read_json_lines(job.path() / "again/metrics.jsonl");
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].at("val_loss") == trained.back().at("val_loss"));
}

TEST_CASE("a model on tokens without a vocab option is refused, and its author is asked to add it", "[program]") {
  const JobFolder job;
  write_file(job.path() / "tokens.bin", std::string(400, '\1'));
  write_file(job.path() / "words.ini",
             std::string("[plugins]\npath = " SHARDRUN_OUTSIDE_STRATEGIES
                         "\n[model]\nname = words\n[data]\ntokens = tokens.bin\nbatch = 2\n[train]\nsteps = 1\n"));
  const Ended refused = run_program(job.path(), {"words.ini"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err,
             StartsWith("shardrun: words.ini:6: [data] tokens: model words is trained on tokens and has no "
                        "option 'vocab'") &&
                 Contains("its author has to declare that"));
  const Ended checked = run_program(
      job.path(), {"plugins", "check", SHARDRUN_OUTSIDE_STRATEGIES "/shardrun_model_words.so", "--case", "declared"});
  CHECK(checked.code == 1);
  CHECK_THAT(checked.out, Contains("has no option 'vocab'"));
}

TEST_CASE("tensors of a model that do not fit together with the job's options are the job's mistake", "[program]") {
  const JobFolder job;
  const std::string text = "[plugins]\npath = " SHARDRUN_OUTSIDE_STRATEGIES
                           "\n[model]\nname = words\n[data]\ntext = corpus.txt\nbatch = 2\n[train]\nsteps = 1\n";
  write_file(job.path() / "words.ini", text);
  CHECK(run_program(job.path(), {"words.ini"}).code == 0);
  const Ended refused = run_program(job.path(), {"words.ini", "--set", "model.context=4"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("op reshape: ") && Contains("cannot become [2, 8, "));

  const Ended wider = run_program(job.path(), with_settings({"words.ini"}, {"model.wider_in_ranks=true", "job.ranks=2",
                                                                            "job.strategy=dp", "job.output=wider"}));
  CHECK(wider.code == 1);
  CHECK_THAT(wider.err, Contains("model words declares other parameters or shapes here"));
}

TEST_CASE("data of a terabyte is refused by its size, or read until the run is asked to stop", "[program]") {
  const JobFolder job;
  write_file(job.path() / "huge", "");
  std::filesystem::resize_file(job.path() / "huge", std::uintmax_t{1} << 43U);
  const Ended text = job.run({"data.text=huge"});
  CHECK(text.code == 2);
  CHECK_THAT(text.err,
             Contains("[data] text: '") && Contains("huge' has 8796093022208 bytes: its tokens take at least"));

  write_file(job.path() / "tokens.ini",
             "[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 8\ncontext = 8\nvocab = 7\n[data]\ntokens = "
             "huge\nbatch = 2\n[train]\nsteps = 1\n");
  const Ended many_calls = run_program(job.path(), {"tokens.ini"});
  CHECK(many_calls.code == 2);
  CHECK_THAT(many_calls.err, Contains("an evaluation of ") && Contains("set [data] eval_batch to more"));
  const Ended stopped = run_script(job.path(), "timeout -s TERM 1 \"$0\" tokens.ini --set data.split=1; test $? = 124");
  INFO(stopped.err);
  CHECK(stopped.code == 0);
  CHECK_THAT(stopped.err, Contains("stopped by SIGTERM"));
}

TEST_CASE("a text with the file name of another format is questioned", "[program]") {
  const JobFolder job;
  std::filesystem::copy_file(job.path() / "corpus.txt", job.path() / "corpus.jsonl");
  const std::string question = "[data] text = corpus.jsonl: is a file of that kind meant?";
  CHECK_THAT(job.run({"train.steps=1", "data.text=corpus.jsonl"}).out, Contains(question));
  CHECK_THAT(run_program(job.path(), {"plan", "job.ini", "--set", "data.text=corpus.jsonl"}).out, Contains(question));
  CHECK_THAT(job.run({"train.steps=1"}).out, !Contains("is a file of that kind meant"));
}

TEST_CASE("the output folder may have the start time in its name", "[program]") {
  const JobFolder job;
  const std::string ranks = GENERATE("1", "2");
  const Ended ended = job.run({"job.output=runs/a-{time}", "train.steps=2", "job.ranks=" + ranks,
                               ranks == "1" ? "job.strategy=single" : "job.strategy=dp"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(job.path() / "runs")) {
    folders.push_back(entry.path());
  }
  REQUIRE(folders.size() == 1);
  const std::string name = folders[0].filename().string();
  CHECK(name.size() == std::string("a-20261122-141503").size());
  CHECK(name.find_first_not_of("0123456789", 2) == 10);
  CHECK(ended.out.find("results in runs/" + name) != std::string::npos);
  CHECK(read_file(folders[0] / "job.ini").find("/runs/" + name + "\n") != std::string::npos);
  for (const char* file : {"summary.json", "weights.safetensors", "metrics.jsonl", "log/rank-0.log"}) {
    CHECK(std::filesystem::exists(folders[0] / file));
  }

  const Ended refused = job.run({"job.output=runs/{date}"});
  CHECK(refused.code == 2);
  CHECK(refused.err.find("--set job.output: [job] output has the placeholder {date}") != std::string::npos);
}

TEST_CASE("peak memory equals the plan to the byte, and the process needs little else", "[program]") {
  const JobFolder job;
  const Ended plan = run_program(job.path(), {"plan", "job.ini", "--json"});
  REQUIRE(plan.code == 0);
  const json::object planned = json::parse(plan.out).as_object();
  const json::object& bytes = rank(planned).at("bytes").as_object();
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));

  REQUIRE(job.run().code == 0);
  const json::object summary = job.summary();
  CHECK(number(rank(summary), "planned_bytes") == number(bytes, "peak"));
  CHECK(number(rank(summary), "peak_bytes") == number(bytes, "peak"));
  CHECK((sanitized || number(rank(summary), "private_bytes") < 100e6));
  CHECK(summary.at("parameters") == planned.at("parameters"));
  double sum = 0;
  for (const auto& [category, count] : rank(summary).at("categories").as_object()) {
    CHECK(count == bytes.at(category));
    sum += count.to_number<double>();
  }
  CHECK(sum == number(bytes, "peak"));
  CHECK(number(bytes, "gradients") == number(bytes, "parameters"));
  CHECK(number(bytes, "optimizer") == 2 * number(bytes, "parameters"));

  const double before = number(rank(summary), "private_bytes");
  REQUIRE(job.run({"train.steps=300"}).code == 0);
  CHECK((sanitized || number(rank(job.summary()), "private_bytes") - before < 256 * 1024));
}

TEST_CASE("a seed gives the same losses with any number of threads", "[program]") {
  const JobFolder job;
  const std::vector<std::string> dropout = {"model.dropout=0.2"};
  REQUIRE(job.run(dropout).code == 0);
  const std::vector<double> first = job.losses();
  const std::string weights = read_file(job.path() / "run/weights.safetensors");

  REQUIRE(job.run({"model.dropout=0.2", "job.threads=2"}).code == 0);
  CHECK(job.losses() == first);
  CHECK(read_file(job.path() / "run/weights.safetensors") == weights);

  REQUIRE(job.run({"model.dropout=0.2", "job.seed=7"}).code == 0);
  CHECK(job.losses() != first);
}

TEST_CASE("uneven microbatches train like the whole batch, with dropout too", "[program]") {
  const JobFolder job;
  REQUIRE(job.run({"model.dropout=0.2", "train.steps=12"}).code == 0);
  const std::vector<double> whole = job.losses();
  const double bytes = number(rank(job.summary()), "peak_bytes");
  REQUIRE(job.run({"model.dropout=0.2", "train.steps=12", "data.microbatches=3"}).code == 0);
  CHECK(worst_relative(job.losses(), whole) < 1e-5);
  CHECK(number(rank(job.summary()), "peak_bytes") < bytes);
}

TEST_CASE("the job file that a run writes runs again", "[program]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=5", "model.gelu=erf"}).code == 0);
  const std::vector<double> losses = job.losses();
  const std::filesystem::path copy = job.path() / "again.ini";
  std::filesystem::copy_file(job.path() / "run/job.ini", copy);
  REQUIRE(run_program(job.path(), {"again.ini"}).code == 0);
  CHECK(job.losses() == losses);
}

TEST_CASE("an interrupted run ends in order and keeps its weights", "[program]") {
  const JobFolder job;
  for (const int signal : {SIGINT, SIGTERM}) {
    bool sent = false;
    const Ended ended = run_program(
        job.path(), with_settings({"job.ini"}, {"train.steps=100000000", "train.eval_every=0", "train.log_every=1"}),
        [&](pid_t process, std::string_view out) {
          if (!sent && out.find("\nstep 3/") != std::string_view::npos) {
            sent = kill(process, signal) == 0;
            kill(process, signal);  // as timeout(1) does
          }
        });
    CHECK(ended.code == 128 + signal);
    const json::object summary = job.summary();
    CHECK(summary.at("status") == "stopped");
    CHECK(number(summary, "exit_code") == 128 + signal);
    CHECK(number(summary, "steps") >= 3);
    CHECK(number(summary, "steps") == static_cast<double>(job.metrics().size()));
    CHECK(run_program(job.path(), {"generate", "run", "--tokens", "5"}).code == 0);
    std::filesystem::remove(job.path() / "run/weights.safetensors");
  }
}

/// Kernels for AVX-512 have their stack pointer within the heap while they multiply matrices as large as these. Some of
/// these signals come at such a moment.
TEST_CASE("a signal in the middle of a large product harms nothing", "[program]") {
  const JobFolder job;
  for (int time = 0; time < 8; ++time) {
    bool sent = false;
    const Ended ended = run_program(
        job.path(),
        with_settings({"job.ini"}, {"model.layers=1", "model.width=128", "model.context=128", "data.batch=64",
                                    "train.steps=100000000", "train.eval_every=0", "train.log_every=1"}),
        [&](pid_t process, std::string_view out) {
          if (!sent && out.find("\nstep 2/") != std::string_view::npos) {
            // Sleeps because no event tells when a product is computed. Each signal comes at another moment of a step.
            std::this_thread::sleep_for(std::chrono::milliseconds(20 * time));
            sent = kill(process, SIGTERM) == 0;
          }
        });
    CHECK(ended.code == 128 + SIGTERM);
    CHECK(job.summary().at("status") == "stopped");
  }
}

TEST_CASE("a second signal ends a run at once, and the run says so", "[program]") {
  const JobFolder job;
  bool sent = false;
  const Ended ended = run_program(
      job.path(), with_settings({"job.ini"}, {"train.steps=100000000", "train.eval_every=0", "train.log_every=1"}),
      [&](pid_t process, std::string_view out) {
        if (!sent && out.find("\nstep 3/") != std::string_view::npos) {
          sent = true;
          kill(process, SIGSTOP);  // so that it finds both signals when it goes on
          while (state_of(process) != 'T') {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          kill(process, SIGINT);
          kill(process, SIGTERM);
          kill(process, SIGCONT);
        }
      });
  const int second = -ended.code;  // if two signals are pending, either may come first
  CHECK((second == SIGINT || second == SIGTERM));
  CHECK(ended.err == std::string("shardrun: ended at once by a second signal (SIG") + sigabbrev_np(second) +
                         "): the results are not saved\n");
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/weights.safetensors"));
}

TEST_CASE("--json prints the summary and nothing else on standard output", "[program]") {
  const JobFolder job;
  const Ended ended = run_program(job.path(), with_settings({"job.ini", "--json"}, {"train.sample=5"}));
  REQUIRE(ended.code == 0);
  CHECK(json::parse(ended.out).as_object() == job.summary());
  CHECK(ended.err.find("step 30/30") != std::string::npos);
  CHECK(ended.err.find("sample:\n") != std::string::npos);
}

TEST_CASE("a full standard output fails the run, and the summary says so", "[program]") {
  const JobFolder job;
  const std::string ranks = GENERATE("", " --json", " --set job.ranks=2 --set job.strategy=dp");
  const Ended ended = run_script(job.path(), "\"$0\" job.ini --set train.steps=2" + ranks + " > /dev/full");
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, EndsWith("shardrun: standard output cannot be written: what was printed is incomplete\n"));
  CHECK(job.summary().at("exit_code") == 1);
  CHECK(job.summary().at("error") == "standard output cannot be written: what was printed is incomplete");
  CHECK(job.summary().at("saved") == "new");
}

TEST_CASE("--profile shows where the time went", "[program]") {
  const JobFolder job;
  const Ended ended = run_program(job.path(), {"job.ini", "--profile"});
  REQUIRE(ended.code == 0);
  CHECK(ended.out.find("function   op ") != std::string::npos);
  CHECK(ended.out.find("matmul_gradient_weights") != std::string::npos);
  CHECK(ended.out.find("step 30: rank 0 sends 0 B/s, computes ") != std::string::npos);
}

#if defined(SHARDRUN_FIRST_PRODUCT)
TEST_CASE("the first product, with which its library sets itself up, is none of the job's", "[program]") {
  const JobFolder job;
  const auto products = [&](const std::string& settings) {
    const std::string script = preloading(SHARDRUN_FIRST_PRODUCT) + "\"$0\" job.ini --set train.steps=1 --profile";
    const Ended ended = run_script(job.path(), script + settings);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return ended.err;
  };
  const std::string large = products(" --set model.width=256");
  CHECK(large.starts_with("product 128 128 128\nproduct "));
  CHECK_FALSE(large.starts_with("product 128 128 128\nproduct 128 128 128\n"));
  CHECK_FALSE(products("").starts_with("product "));  // its products are too small for that
}
#endif

TEST_CASE("--profile shows what each rank sends and computes while the run goes on", "[program]") {
  const JobFolder job;
  const Ended ended =
      run_program(job.path(), {"job.ini", "--profile", "--set", "job.ranks=2", "--set", "job.strategy=dp", "--set",
                               "train.log_every=15", "--set", "cluster.flops=1e9", "--set",
                               "cluster.memory_bandwidth=1e9", "--set", "cluster.bandwidth=1e9"});
  INFO(ended.out << ended.err);
  REQUIRE(ended.code == 0);
  for (const char* step : {"step 15: rank 0 sends ", "step 30: rank 0 sends "}) {
    const std::size_t at = ended.out.find(step);
    REQUIRE(at != std::string::npos);
    const std::string line = ended.out.substr(at, ended.out.find('\n', at) - at);
    CHECK(line.find("; rank 1 sends ") != std::string::npos);
    CHECK(line.find(" of [cluster] flops), waits ") != std::string::npos);
  }
  for (const json::object& step : job.metrics()) {
    CHECK(number(step, "bandwidth") > 0);
    CHECK(number(step, "utilisation") == Approx(number(step, "flops_per_s") / 1e9));
  }
}

TEST_CASE("generate makes text from a run, the same for a seed", "[program]") {
  const JobFolder job;
  REQUIRE(job.run().code == 0);
  const auto generate = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "generate");
    const Ended ended = run_program(job.path(), words);
    INFO(ended.err);
    CHECK(ended.code == 0);
    return ended.out;
  };
  const std::string text = generate({"run", "--prompt", "the cat", "--tokens", "60", "--seed", "5"});
  CHECK(text.size() == 7 + 60 + 1);
  CHECK(text.find("the cat") == 0);
  CHECK(generate({"run/weights.safetensors", "--prompt", "the cat", "--tokens", "60", "--seed", "5", "--threads",
                  "2"}) == text);
  CHECK(generate({"run", "--prompt", "the cat", "--tokens", "60", "--seed", "6"}) != text);
  CHECK(generate({"run", "--prompt", "the cat", "--tokens", "0"}) == "the cat\n");
  CHECK(generate({"run", "--temperature", "0", "--tokens", "30"}) ==
        generate({"run", "--top-k", "1", "--tokens", "30", "--seed", "6"}));

  const Ended unknown = run_program(job.path(), {"generate", "run", "--prompt", "QUIZ"});
  CHECK(unknown.code == 2);
  CHECK(unknown.err.find("'Q'") != std::string::npos);
}

TEST_CASE("a prompt of token numbers is continued without a tokenizer", "[program]") {
  const JobFolder job;
  std::string tokens;
  for (int i = 0; i < 2000; ++i) {
    tokens += {static_cast<char>(i % 7), '\0'};
  }
  write_file(job.path() / "tokens.bin", tokens);
  write_file(job.path() / "numbers.ini",
             "[job]\noutput = numbers\n[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 8\ncontext = 8\nvocab = "
             "7\n[data]\ntokens = tokens.bin\nbatch = 2\n[train]\nsteps = 1\n");
  REQUIRE(run_program(job.path(), {"numbers.ini"}).code == 0);
  const auto generate = [&](const std::string& prompt) {
    return run_program(job.path(), {"generate", "numbers", "--tokens", "2", "--prompt", prompt});
  };
  CHECK_THAT(generate("3 1,6").out, StartsWith("3 1 6 "));
  CHECK_THAT(generate("").out, StartsWith("0 "));
  for (const char* wrong : {"3 the", "3 1x", "-1"}) {
    const Ended refused = generate(wrong);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err, Contains("so a prompt is numbers of tokens, such as") && Contains("found '"));
  }
  const Ended unknown = generate("3 7");
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Contains("it has the token 7, and the model has tokens 0 to 6"));
}

TEST_CASE("a network learns from arrays, with real targets and with labels", "[program]") {
  const JobFolder job;
  std::string x;
  std::string reals;
  std::string labels;
  for (int row = 0; row < 160; ++row) {
    const auto a = static_cast<float>(std::sin(row * 1.7));
    const auto b = static_cast<float>(std::cos(row * 0.9));
    x += bytes_of<float>({a, b});
    reals += bytes_of<float>({a * b, a - b});
    labels += bytes_of<std::int64_t>({(a > 0 ? 1 : 0) + (b > 0 ? 1 : 0)});
  }
  write_file(job.path() / "x.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (160, 2), }", x));
  write_file(job.path() / "reals.npy",
             npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (160, 2), }", reals));
  write_file(job.path() / "labels.npy",
             npy_file("{'descr': '<i8', 'fortran_order': False, 'shape': (160,), }", labels));
  const auto learn = [&](const std::string& targets, const std::string& loss) {
    write_file(job.path() / "mlp.ini",
               "[job]\noutput = run\n[model]\nname = mlp\nhidden = 32\nloss = " + loss + "\n[data]\narrays = x.npy, " +
                   targets + "\nbatch = 20\nmicrobatches = 3\n[train]\nsteps = 200\nlearning_rate = 1e-2\n");
    const Ended ended = run_program(job.path(), {"mlp.ini", "--replace"});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    CHECK(ended.out.find(" samples/s") != std::string::npos);
    CHECK(ended.out.find(" tok/s") == std::string::npos);
    const std::vector<double> losses = job.losses();
    CHECK(number(job.summary(), "val_loss") < 0.5 * losses.front());
    CHECK(losses.back() < 0.5 * losses.front());
  };
  learn("reals.npy", "squared_error");
  learn("labels.npy", "cross_entropy");
}
