#include <algorithm>
#include <chrono>
#include <memory>
#include <set>

#include "core/train/steps.h"
#include "core/train/training.h"
#include "core/verify/verify.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/verify/support.h"

using namespace shardrun;
using namespace shardrun::test;
using verify::Moment;

namespace {

VerifyCase mlp_of(const char* hidden = "9") {
  return VerifyCase(training_case("mlp", "mlp", {{"hidden", hidden}}, {.features = 5, .outputs = 3},
                                  {.batch = 7, .microbatches = 3, .eval_rows = 3, .eval_samples = 5}));
}

/// Writes every rank's files of a run.
void record(const VerifyCase& checked, const plan::Plan& plan, const char* device, const TemporaryFolder& folder) {
  const verify::Workload workload = checked.workload();
  verify::interpret(workload, partition::split(workload.graph, plan), {.device = device},
                    [&](std::int64_t step, Moment moment, runtime::Interpreter& ranks) {
                      for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
                        verify::write_snapshot(folder.path(), step, moment, static_cast<std::int64_t>(rank),
                                               workload.graph, ranks.rank(rank));
                      }
                    });
}

}  // namespace

TEST_CASE("snapshots in files are compared like snapshots in memory", "[verify]") {
  const VerifyCase checked = mlp_of();
  // Over 4 ranks, 9 columns are split into parts of 3 and 2, and of 3 rows one rank has none.
  std::vector<NamedPlan> plans = stored_plans(checked.model.graph);
  plans.push_back({"model 4", tensor_parallel(4)});
  for (const NamedPlan& plan : plans) {
    for (const char* device : {"cpu", "reference"}) {
      INFO(plan.name << ", " << device);
      const TemporaryFolder folder;
      record(checked, plan.plan, device, folder);
      const verify::Report report = verify::verify_snapshots(checked.workload(), {folder.path(), plan.plan.ranks(), 2});
      const partition::Partition partition = partition::split(checked.model.graph, plan.plan);
      const verify::Report direct = verify::verify_interpreted(checked.workload(), partition, {.device = device});
      CHECK(report.passed());
      CHECK(verify::to_json(report, 1000) == verify::to_json(direct, 1000));
    }
  }
}

TEST_CASE("a comparison ends at the op where it is asked to stop, and its meter counts every op", "[verify]") {
  const VerifyCase checked = mlp_of();
  const TemporaryFolder folder;
  record(checked, tensor_parallel(2), "cpu", folder);
  int ops = 0;
  std::string shown;
  const auto compare = [&](int most) {
    ops = 0;
    shown.clear();
    screen::SteadyTime now;
    verify::Meter meter({.write = [&](std::string_view text) { shown += text; },
                         .now = [&] { return now += std::chrono::seconds(20); }},  // every op is shown
                        "comparing");
    (void)verify::verify_snapshots(
        checked.workload(),
        {.folder = folder.path(), .ranks = 2, .steps = 2, .stops = [&] { return ++ops > most; }, .meter = &meter});
  };
  compare(1'000'000);
  const int all = ops;
  CHECK(std::count(shown.begin(), shown.end(), '\n') == all + 3);  // two steps and the validation begin with a line
  CHECK(shown.starts_with("comparing: step 1/2  0%\n"));
  CHECK(shown.find("comparing: step 2/2") != std::string::npos);
  CHECK(shown.substr(shown.rfind("comparing")) == "comparing: validation  100%\n");

  CHECK_THROWS_AS(compare(3), Error);
  CHECK(ops == 4);
  CHECK(shown.find("step 2/2") == std::string::npos);
  CHECK_THROWS_AS(compare(all - 1), Error);
  CHECK(ops == all);
}

TEST_CASE("only selected tensors are compared, and nothing is evaluated unless the loss is selected", "[verify]") {
  const VerifyCase checked = mlp_of();
  const graph::Graph& graph = checked.model.graph;
  const TemporaryFolder folder;
  record(checked, tensor_parallel(2), "cpu", folder);
  const auto compared = [&](const std::vector<std::string>& globs) {
    const verify::Report report = verify::verify_snapshots(
        checked.workload(),
        {.folder = folder.path(), .ranks = 2, .steps = 2, .selection = verify::select(graph, globs)});
    CHECK(report.passed());
    std::set<std::string> pairs;
    for (const verify::Difference& difference : report.worst()) {
      pairs.insert(difference.tensor + " " + verify::to_string(difference.what));
    }
    return pairs;
  };
  CHECK(compared({"layer_0/weights"}) ==
        std::set<std::string>{"layer_0/weights initial", "layer_0/weights gradient", "layer_0/weights update",
                              "layer_0/weights replica", "gradients/layer_0/weights replica",
                              "first_moment/layer_0/weights initial", "first_moment/layer_0/weights update",
                              "first_moment/layer_0/weights replica", "second_moment/layer_0/weights initial",
                              "second_moment/layer_0/weights update", "second_moment/layer_0/weights replica"});
  CHECK(compared({"loss", "gradient_norm"}) == std::set<std::string>{"loss loss", "loss evaluation", "loss replica",
                                                                     "gradient_norm gradient_norm",
                                                                     "gradient_norm replica"});
  CHECK(compared({"second_moment/*_0/?eights"}).size() == 3);
  CHECK(compared({"*"}) == compared({}));
}

TEST_CASE("a glob that matches no tensor is refused with the nearest names", "[verify]") {
  const VerifyCase checked = mlp_of();
  const auto error = [&](const std::vector<std::string>& globs) {
    return error_of([&] { (void)verify::select(checked.model.graph, globs); });
  };
  CHECK(error({"*", "layer_0/weights"}) == "nothing");
  CHECK_THAT(error({"*", "layer_0/weihgts"}),
             Catch::Matchers::Contains("--tensors 'layer_0/weihgts' matches no tensor (did you mean "
                                       "'layer_0/weights'?); the job has") &&
                 Catch::Matchers::Contains("layer_1/weights, loss, gradient_norm, "));
}

TEST_CASE("a rank's snapshot that is missing or of another job is refused", "[verify]") {
  const VerifyCase checked = mlp_of();
  const TemporaryFolder folder;
  record(checked, tensor_parallel(2), "cpu", folder);
  const auto error = [&](const VerifyCase& given, std::int64_t ranks, std::int64_t steps) {
    return error_of([&] { (void)verify::verify_snapshots(given.workload(), {folder.path(), ranks, steps}); });
  };
  CHECK(error(checked, 2, 2) == "nothing");
  CHECK(error(checked, 3, 2).find("step-0.begin.rank-2.safetensors") != std::string::npos);
  CHECK(error(checked, 2, 3).find("step-2.begin.rank-0.safetensors") != std::string::npos);
  CHECK(error(mlp_of("8"), 2, 2)
            .find("layer_0/weights should be a part of an F32 or F64 tensor [5, 8]; found F32 "
                  "[5, 5] at '0,0 of 5,9'") != std::string::npos);
}

TEST_CASE("verify compares the functions that a training job calls", "[verify]") {
  ModelCase model = mlp_of().model;
  job::Job job;
  job.seed = 23;
  job.ranks = 1;
  job.threads = 1;
  job.data.batch = 7;
  job.train.steps = 4;
  job.train.learning_rate = 0.02;
  job.train.warmup = 2;
  compile::Compiled compiled;
  compiled.dataset = std::make_unique<NumberedSamples>(1);
  compiled.graph = std::move(model.graph);
  compiled.device = &device::Device::find("cpu");
  compiled.partition = partition::split(compiled.graph, data_parallel(1));
  compiled.programs = partition::programs_of(compiled.graph, compiled.partition, {.device = *compiled.device});
  compiled.microbatch_rows = model.microbatch_rows;
  compiled.evaluation_rows = model.evaluation_rows;

  const TemporaryFolder folder;
  train::Training training(job, compiled);
  const auto write = [&](std::int64_t step, Moment moment) {
    verify::write_snapshot(folder.path(), step, moment, 0, compiled.graph, training.executor());
  };
  training.initialize();
  for (std::int64_t step = 0; step < 3; ++step) {
    write(step, Moment::begin);
    (void)training.differentiate(step);
    write(step, Moment::gradients);
    (void)training.update(step);
    write(step, Moment::end);
  }
  (void)training.evaluate();
  write(2, Moment::evaluation);

  const verify::Workload workload = verify::workload_of(job, compiled);
  const verify::Report report = verify::verify_snapshots(workload, {folder.path(), 1, 3});
  INFO(verify::to_text(report));
  CHECK(report.passed());
  CHECK(report.steps() == 3);
  job.train.learning_rate = 0.03;
  CHECK_FALSE(verify::verify_snapshots(workload, {folder.path(), 1, 3}).passed());
}
