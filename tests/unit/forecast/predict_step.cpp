// [cluster]: the times that follow from rates, and those that are read from a trace.

#include "core/forecast/predict_step.h"

#include <cmath>

#include "core/forecast/forecast.h"
#include "core/train/tracer.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using partition::Instruction;
using Kind = Instruction::Kind;

namespace {

const graph::Op product{.name = "matmul"};

Instruction step_instruction(Kind kind, std::int64_t flops = 0) {
  Instruction made{.kind = kind, .op = &product, .name = "product"};
  made.transfer = partition::TransferId(kind == Kind::compute ? -1 : 0);
  made.flops = flops;
  return made;
}

/// The first of two stages computes and sends; the second receives. The product is of 5 elements, the message of 3.
partition::Programs stage(std::int64_t rank, std::int64_t flops = 8, graph::DType product_type = graph::DType::f32,
                          graph::DType sent_type = graph::DType::f32) {
  using enum Instruction::Kind;
  partition::Program micro{.function = "micro"};
  micro.buffers = {{.name = "product", .bytes = 5 * graph::element_bytes(product_type)}};
  micro.transfers = {{.name = "a",
                      .collective = rank == 0 ? partition::Collective::send : partition::Collective::receive,
                      .axis = mesh::AxisId(0),
                      .dtype = sent_type,
                      .send = {.elements = 3},
                      .link = {partition::StageId(0), partition::StageId(1)}}};
  micro.instructions = {step_instruction(start), step_instruction(wait)};
  if (rank == 0) {
    micro.instructions.insert(micro.instructions.begin(), step_instruction(compute, flops));
    micro.instructions.front().outputs = {partition::BufferId(0)};
  }
  return {.mesh = {{{"pipe", 2}}}, .rank = rank, .programs = {micro}};
}

/// Begins and ends of a step's instructions, in microseconds.
using Spans = std::vector<std::pair<std::int64_t, std::int64_t>>;

std::string trace_of(const partition::Programs& programs, const std::vector<Spans>& steps) {
  runtime::Timeline timeline(100);
  std::vector<forecast::TracedStep> traced;
  for (const Spans& spans : steps) {
    traced.push_back({.step = static_cast<std::int64_t>(traced.size()) + 3,
                      .begin = 0,
                      .end = 1000000,
                      .first_span = timeline.spans().size()});
    for (std::uint32_t i = 0; i < spans.size(); ++i) {
      timeline.add({.instruction = i, .begin = spans[i].first * 1000, .end = spans[i].second * 1000});
    }
  }
  return forecast::trace_of(traced, timeline, programs).text();
}

/// The times of these traces, which are written to files and read again.
forecast::MeasuredSteps measured(const std::vector<std::string>& traces) {
  const TemporaryFolder folder;
  std::string all;
  for (const std::string& trace : traces) {
    metrics::join_trace(all, trace, "a trace");
  }
  write_file(folder / "trace.json", all);
  return {folder.path(), "here"};
}

constexpr double us = 1e-6;

}  // namespace

TEST_CASE("a measured time is a median, and a wait counts from when every rank had started", "[predict]") {
  const partition::Programs first = stage(0);
  const partition::Programs second = stage(1);
  forecast::MeasuredSteps steps =
      measured({trace_of(first, {{{0, 10}, {10, 11}, {11, 30}},
                                 {{100, 120}, {120, 121}, {121, 122}},
                                 {{200, 212}, {212, 213}, {213, 214}}}),
                trace_of(second, {{{0, 1}, {1, 15}}, {{0, 1}, {1, 127}}, {{0, 1}, {240, 246}}})});
  const std::vector<forecast::RankStep> ranks = {{&first, {0}}, {&second, {0}}};
  for (const forecast::RankStep& rank : ranks) {
    steps.require(rank);
  }
  const std::vector<std::vector<double>> medians = steps.medians(ranks, mesh::AxisId(0));
  REQUIRE(medians.size() == 2);
  CHECK_THAT(medians[0], Catch::Matchers::Approx(std::vector{12 * us, 1 * us, 1 * us}));
  // Sent at 10, 120 and 212, waited for from 1, 1 and 240.
  CHECK_THAT(medians[1], Catch::Matchers::Approx(std::vector{1 * us, 6 * us}));
  CHECK(steps.computing(0) == Approx(12 * us));
}

TEST_CASE("another job's trace is refused with the first difference", "[predict]") {
  forecast::MeasuredSteps steps = measured({trace_of(stage(0), {{{0, 10}, {10, 11}, {11, 30}}})});
  const auto refusal = [&](const partition::Programs& programs, const std::vector<std::size_t>& executed = {0}) {
    return error_of([&] { steps.require({&programs, executed}); });
  };
  CHECK(refusal(stage(0)) == "nothing");
  CHECK(refusal(stage(1)) == "2: here: the trace has nothing of rank 1, which this job needs; ranks in it: 1");
  CHECK_THAT(
      refusal(stage(0, 9)),
      Contains("in step 3 rank 0 executed 3 instructions, of this job's 3 the first 0; then the job has product in "
               "micro (9 FLOPs, 20 bytes), the trace product in micro (8 FLOPs, 20 bytes)"));
  CHECK_THAT(refusal(stage(0), {0, 0}),
             Contains("then the job has product in micro (8 FLOPs, 20 bytes), the trace no more"));
  CHECK_THAT(refusal(stage(0), {}), Contains("then the job has no more, the trace product in micro"));
}

TEST_CASE("the trace of a job with other element types is refused", "[predict]") {
  forecast::MeasuredSteps steps = measured({trace_of(stage(0), {{{0, 10}, {10, 11}, {11, 30}}})});
  const auto refusal = [&](graph::DType product_type, graph::DType sent_type) {
    const partition::Programs programs = stage(0, 8, product_type, sent_type);
    return error_of([&] { steps.require({&programs, {0}}); });
  };
  using enum graph::DType;
  CHECK(refusal(f32, f32) == "nothing");
  CHECK_THAT(
      refusal(bf16, f32),
      Contains("the first 0; then the job has product in micro (8 FLOPs, 10 bytes), the trace product in micro (8 "
               "FLOPs, 20 bytes). Trace a run of this job"));
  CHECK_THAT(refusal(f32, bf16), Contains("the first 1; then the job has start send of a in micro (6 bytes), the trace "
                                          "start send of a in micro (12 bytes)"));
}

TEST_CASE("a file that is not a trace is refused", "[predict]") {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::filesystem::path& path) {
    return error_of([&] { forecast::MeasuredSteps(path, "here"); });
  };
  CHECK_THAT(refusal(folder.path()), Contains("2: here: there is no trace.json in this folder"));
  CHECK_THAT(refusal(folder / "none"), Contains("2: here: there is no such file or folder"));
  for (const char* text : {"", "{}", "[1, 2", R"({"traceEvents": [{"ph": "X"}]})", R"({"traceEvents": 3})"}) {
    write_file(folder / "other.json", text);
    CHECK_THAT(refusal(folder / "other.json"), Contains(" is no trace of a run; name the output folder"));
  }
}

namespace {

const std::vector<std::string> rates = {"cluster.flops=1e9", "cluster.memory_bandwidth=1e24"};

forecast::StepForecast forecast_of(const std::vector<std::string>& more) {
  const TemporaryFolder folder;
  std::vector<std::string> settings = rates;
  settings.insert(settings.end(), more.begin(), more.end());
  const job::Job job = text_job_in(folder, settings);
  return forecast::forecast(job, compile::compile(job)).step.value();
}

}  // namespace

TEST_CASE("a single rank has full utilisation unless it computes again", "[predict]") {
  const forecast::StepForecast step = forecast_of({});
  CHECK(step.utilisation.value() == Approx(1));
  CHECK(step.model_flops_per_s == Approx(1e9));
  CHECK(step.samples_per_s == Approx(7 / step.prediction.seconds));
  CHECK(step.tokens_per_s == Approx(7 * 16 / step.prediction.seconds));
  CHECK(step.prediction.stages.at(0).compute == Approx(step.prediction.seconds));

  const forecast::StepForecast again = forecast_of({"train.remat=layer"});
  CHECK(again.utilisation.value() < 0.9);
  CHECK(again.prediction.seconds > step.prediction.seconds);
}

TEST_CASE("data-parallel ranks wait for their messages", "[predict]") {
  const std::vector<std::string> two = {"job.ranks=2", "job.strategy=dp", "cluster.bandwidth=1e24"};
  const auto with_latency = [&](const std::string& latency) {
    std::vector<std::string> settings = two;
    settings.push_back("cluster.latency=" + latency);
    return forecast_of(settings).prediction;
  };
  const forecast::Prediction free = with_latency("0");
  const forecast::Prediction slow = with_latency("1000");
  CHECK(free.stages.at(0).exposed == Approx(0).margin(1e-12));
  const double messages = slow.stages[0].exposed / 1000;
  CHECK(messages >= 2);
  CHECK(messages == Approx(2 * std::round(messages / 2)).margin(0.01));
  CHECK(slow.stages[0].compute == free.stages[0].compute);
}

TEST_CASE("an axis that the mesh lacks, or that has no bandwidth, is refused", "[predict]") {
  const auto refusal = [](const std::vector<std::string>& more) { return error_of([&] { forecast_of(more); }); };
  CHECK(refusal({"job.ranks=2", "job.strategy=dp", "cluster.dat.bandwidth=1"}) ==
        "2: --set cluster.dat.bandwidth: the mesh has no axis 'dat' (did you mean 'data'?); it has data");
  CHECK(refusal({"cluster.data.bandwidth=1"}) ==
        "2: --set cluster.data.bandwidth: the mesh has no axis 'data'; it has none");
  CHECK(
      refusal({"job.ranks=2", "job.strategy=dp"}) ==
      "2: --set cluster.flops: [cluster] flops needs a bandwidth for mesh axis data, over which 2 ranks exchange data; "
      "write bandwidth under [cluster], or under [cluster.data]");
}
