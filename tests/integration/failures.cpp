#include <algorithm>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/npy.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;

TEST_CASE("a job that is wrong is refused before anything is written", "[program]") {
  const JobFolder job;
  const auto refused = [&](const std::vector<std::string>& overrides) {
    const Ended ended = job.run(overrides);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
    return ended.err;
  };
  CHECK_THAT(refused({"model.width=15"}), Contains(": [model] heads = 2 does not divide width = 15"));
  CHECK_THAT(refused({"data.text=missing.txt"}), Contains("missing.txt"));
  CHECK_THAT(refused({"data.batch=0"}), Contains("batch"));
  CHECK_THAT(refused({"train.stepz=3"}), Contains("did you mean 'steps'?"));
  CHECK_THAT(refused({"job.strategy=singel"}), Contains("singel") && Contains("single"));
  CHECK_THAT(refused({"job.ranks=2"}), Contains("single"));
  CHECK_THAT(refused({"model.context=4000"}), Contains("corpus.txt") && Contains("4000"));
  CHECK_THAT(refused({"model.width=262144"}), Contains("the job needs") && Contains("available"));
  CHECK_THAT(refused({"job.task=iterate"}), Contains("[train] has no effect with [job] task = iterate"));
}

TEST_CASE("a missing job file is named", "[program]") {
  const TemporaryFolder folder;
  const Ended ended = run_program(folder.path(), {"nothing.ini"});
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("nothing.ini"));
}

TEST_CASE("a run whose loss is not finite fails with the step and the tensor, on screen and in its summary",
          "[program]") {
  const JobFolder job;
  const Ended ended = job.run({"train.learning_rate=1e30"});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("shardrun: step 2: the loss is NaN; the first tensor that is not finite: layer.0/"));
  CHECK(job.summary().at("status") == "failed");
  CHECK(job.summary().at("exit_code") == 1);
  CHECK(job.summary().at("steps") == 1);
  CHECK(job.metrics().size() == 1);
  CHECK_THAT(read_file(job.path() / "run/log/rank-0.log"), Contains("step 2: the loss is NaN"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/weights.safetensors"));
}

TEST_CASE("an output folder that cannot be made is an error of the job", "[program]") {
  const JobFolder job;
  write_file(job.path() / "run", "a file");
  const Ended ended = job.run();
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("run"));
}

TEST_CASE("a file that is not weights is refused", "[program]") {
  const TemporaryFolder folder;
  write_file(folder / "weights.safetensors", "not weights");
  const Ended ended = run_program(folder.path(), {"generate", "weights.safetensors"});
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("weights.safetensors"));
  CHECK(run_program(folder.path(), {"generate", "missing"}).code != 0);
}

TEST_CASE("sizes that no machine has are refused, not computed with", "[program]") {
  const JobFolder job;
  const auto refused = [&](const std::vector<std::string>& overrides) {
    const Ended ended = job.run(overrides);
    CHECK(ended.code == 2);
    return ended.err;
  };
  CHECK_THAT(refused({"model.layers=1000000000"}), Contains("at most 1024"));
  CHECK_THAT(refused({"model.width=262144", "data.batch=2000000000"}), Contains("elements that a tensor may have"));
}

TEST_CASE("a run never overwrites the job file that it was started with", "[program]") {
  const JobFolder job;
  CHECK_THAT(run_program(job.path(), {"job.ini", "--set", "job.output=."}).err, Contains("choose another"));
}

TEST_CASE("a run never overwrites a job.ini that no run has written", "[program]") {
  const JobFolder job;
  const Ended ended = run_program(job.path(), {"job.ini", "--set", "job.output=elsewhere"});
  REQUIRE(ended.code == 0);
  CHECK(run_program(job.path(), {"job.ini", "--set", "job.output=elsewhere"}).code == 0);
  std::filesystem::remove(job.path() / "elsewhere/.lock");
  const Ended again = run_program(job.path(), {"job.ini", "--set", "job.output=elsewhere"});
  CHECK(again.code == 2);
  CHECK_THAT(again.err, Contains("job.ini which no run has written"));
}

TEST_CASE("a run never removes the data that it reads", "[program]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const std::string text = read_file(job.path() / "corpus.txt");
  write_file(job.path() / "run/sample.txt", text);
  const std::string summary = read_file(job.path() / "run/summary.json");
  const Ended ended = job.run({"train.steps=1", "data.text=run/sample.txt"});
  CHECK(ended.code == 2);
  CHECK(ended.err.find("sample.txt', which [data] names") != std::string::npos);
  CHECK(read_file(job.path() / "run/sample.txt") == text);
  CHECK(read_file(job.path() / "run/summary.json") == summary);
}

TEST_CASE("a run never removes files that its job file includes or its options name", "[program]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const std::string settings = "[job]\nseed = 3\n";
  write_file(job.path() / "run/sample.txt", settings);
  const std::string text = read_file(job.path() / "job.ini");
  write_file(job.path() / "job.ini", "include = run/sample.txt\n" + text);
  const Ended including = job.run({"train.steps=1"});
  CHECK(including.code == 2);
  CHECK_THAT(including.err, Contains("sample.txt', which include names and which this run would replace or remove"));
  CHECK(read_file(job.path() / "run/sample.txt") == settings);

  write_file(job.path() / "job.ini", text);
  const std::string schedule = "0F0,0B0\n1F0,1B0\n";
  write_file(job.path() / "run/sample.txt", schedule);
  const Ended named = job.run(
      {"train.steps=1", "job.ranks=2", "job.strategy=pp", "data.microbatches=1", "strategy.schedule=run/sample.txt"});
  CHECK(named.code == 2);
  CHECK_THAT(named.err, Contains("sample.txt', which [strategy] schedule names and which this run would replace"));
  CHECK(read_file(job.path() / "run/sample.txt") == schedule);
}

TEST_CASE("more ranks than the border can count are refused", "[program]") {
  const JobFolder job;
  CHECK_THAT(run_program(job.path(), {"plan", "job.ini", "--set", "job.ranks=4294967297"}).err, Contains("at most"));
}

TEST_CASE("a validation loss that is not finite fails the job at once if a parameter is not finite", "[program]") {
  const JobFolder job;
  const Ended ended = job.run({"train.steps=1", "train.learning_rate=1e300", "checkpoint.every=1"});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("step 1: the validation loss is NaN; the first tensor that is not finite: ") &&
                            Contains(" (a parameter). No weights are written"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/weights.safetensors"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/checkpoints/step-000001"));
}

TEST_CASE("a validation loss that is not finite does not lose finite parameters", "[program]") {
  const int ranks = GENERATE(1, 2);
  const JobFolder job;
  // The last rows are for validation. They are finite, but too large to be squared.
  std::vector<float> rows(40, 0.5F);
  std::fill(rows.begin() + 36, rows.end(), 1e30F);
  const auto write_rows = [&](const char* name) {
    write_file(job.path() / name, npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (20, 2), }",
                                           {reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float)}));
  };
  write_rows("x.npy");
  write_rows("y.npy");
  write_file(job.path() / "job.ini",
             "[job]\noutput = run\nranks = " + std::to_string(ranks) +
                 "\nstrategy = dp\n[model]\nname = mlp\nhidden = 3\nloss = squared_error\n[data]\narrays = x.npy, "
                 "y.npy\nbatch = 4\nsplit = 0.9\n[train]\nsteps = 4\neval_every = 2\nlearning_rate = 0.01\n"
                 "[checkpoint]\nevery = 1000\n");
  const std::string told = "step 2: the validation loss is infinite; the first tensor that is not finite: ";

  const Ended stopped = job.run({});
  INFO(stopped.err);
  CHECK(stopped.code == 1);
  CHECK_THAT(stopped.err, Contains(told) && Contains("function evaluate)") && Contains("validation batch 1") &&
                              Contains("All parameters are finite and were saved"));
  CHECK((ranks == 1 || stopped.err.find(" of rank ") != std::string::npos));
  CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
  CHECK(std::filesystem::exists(job.path() / "run/checkpoints/step-000002"));
  CHECK(job.summary().at("saved") == "new");
  CHECK(job.summary().at("steps") == 2);

  const Ended on = run_program(job.path(), {"job.ini", "--resume", "--set", "train.on_nan=warn"});
  INFO(on.err);
  CHECK(on.code == 0);
  CHECK_THAT(on.out, Contains("step 4: the validation loss is infinite") &&
                         Contains("the run goes on ([train] on_nan = warn)"));
  CHECK(job.metrics().size() == 4);
  CHECK(job.metrics().back().at("val_loss").is_null());
}
