#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/strategies/agreement.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

std::string refusal(const ModelCase& model, const Choice& choice) {
  return error_of([&] { static_cast<void>(split_by(model, choice)); });
}

ModelCase heat() {
  return {.name = "heat1d",
          .graph = workload::build_iteration(find_model("heat1d"), model_settings("heat1d", {{"cells", "37"}}))};
}

}  // namespace

TEST_CASE("a model without the axes that a strategy splits is refused with the reason", "[strategies]") {
  for (const char* strategy : {"dp", "zero1", "zero2", "zero3", "hsdp", "3d"}) {
    CHECK_THAT(refusal(heat(), {strategy, ranks(2)}),
               Contains("2: strategy '" + std::string(strategy) + "'") &&
                   Contains("it splits the batch, and this model has none: choose a strategy"));
  }
  CHECK_THAT(refusal(heat(), {"pp", ranks(2)}), Contains("it splits the layers, and this model has none"));
  CHECK_THAT(refusal(heat(), {"tp", ranks(2)}), Contains("it splits the axes heads, mlp and vocab"));
  const ModelCase mlp = mlp_of_numbers().model;
  CHECK_THAT(refusal(mlp, {"tp", ranks(2), {{"sequence", true}}}),
             Contains("sequence = true splits cut points along the axis seq, and this model has no cut point with it"));
  CHECK_THAT(refusal(mlp, {"3d", {{"model", 2}}, {{"sequence", true}}}),
             Contains("splits cut points along the axis seq"));
}

TEST_CASE("a mesh that does not suit a strategy is refused with the reason", "[strategies]") {
  const ModelCase gpt = plain_gpt().model;
  CHECK_THAT(refusal(gpt, {"3d", {{"data", 2}, {"pipe", 2}}, {{"zero", std::int64_t{3}}, {"keep", std::string("*")}}}),
             Contains("keep would last through all microbatches"));
  CHECK_THAT(refusal(gpt, {"zero3", ranks(2), {{"keep", std::string("head*")}}}),
             Contains("keep = head* matches no parameter"));
  CHECK_THAT(refusal(gpt, {"3d", {{"data", 2}, {"rows", 2}}}),
             Contains("its mesh axes are data, model, pipe and replica, and [mesh] has 'rows'"));
  CHECK_THAT(refusal(gpt, {"hsdp", {{"replica", 2}, {"data", 2}}}),
             Contains("its mesh axes are replica and shard, and [mesh] has 'data'"));
  for (const char* strategy : {"dp", "zero1", "zero2", "zero3", "pp", "tp"}) {
    CHECK_THAT(refusal(gpt, {strategy, {{"a", 2}, {"b", 2}}}),
               Contains("'" + std::string(strategy) + "'") && Contains("[mesh]"));
  }
  CHECK_THAT(refusal(gpt, {"single", ranks(2)}), Contains("it keeps everything on one rank, but the job has 2 ranks"));
}

TEST_CASE("options that do not go together are refused", "[strategies]") {
  const ModelCase gpt = plain_gpt().model;
  CHECK_THAT(refusal(gpt, {"3d", {{"data", 2}}, {{"keep", "*"}, {"zero", std::int64_t{2}}}}),
             Contains("keep = * has no effect with zero = 2: it is of parameters that are split, which they are with "
                      "zero = 3; leave it out"));
  CHECK_THAT(refusal(gpt, {"3d", {{"data", 2}}, {{"zero", std::int64_t{4}}}}), Contains("zero") && Contains("3"));
  CHECK_THAT(refusal(gpt, {"pp", ranks(2), {{"schedule", "gpipes"}}}), Contains("schedule") && Contains("gpipe"));
  CHECK_THAT(refusal(gpt, {"zero3", ranks(2), {{"keep", "nothing/*"}}}), Contains("nothing/*"));
}

TEST_CASE("an option without an effect is refused with the reason", "[strategies]") {
  const ModelCase gpt = plain_gpt().model;
  const std::vector<plan::MeshAxis> mesh = {{"data", 2}, {"pipe", 2}};
  const OptionValue three = std::int64_t{3};
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    const std::string why = std::string("chunks = 3 has no effect with schedule = ") + schedule +
                            ", which has one chunk a stage: leave it out, or set schedule = interleaved";
    CHECK_THAT(refusal(gpt, {"pp", ranks(2), {{"schedule", schedule}, {"chunks", three}}}), Contains(why));
    CHECK_THAT(refusal(gpt, {"3d", mesh, {{"schedule", schedule}, {"chunks", three}}}), Contains(why));
    CHECK_THAT(refusal(gpt, {"3d", {{"data", 2}, {"pipe", 1}}, {{"schedule", schedule}, {"chunks", three}}}),
               Contains(why));
  }
  CHECK_THAT(refusal(gpt, {"pp", ranks(2), {{"schedule", OptionFile{"my.csv", ""}}, {"chunks", three}}}),
             Contains("chunks = 3 has no effect with schedule = my.csv, a file that says which chunks there are"));
  for (const std::int64_t zero : {0, 1, 2}) {
    CHECK_THAT(refusal(gpt, {"3d", mesh, {{"zero", zero}, {"unit", "tensor"}}}),
               Contains("unit = tensor has no effect with zero = " + std::to_string(zero)));
  }
  CHECK_THAT(refusal(gpt, {"3d", {{"data", 2}}, {{"schedule", "zb-h1"}}}),
             Contains("schedule = zb-h1 has no effect without stages, of which [mesh] pipe is the number"));
}

TEST_CASE("layers that do not make the model are refused", "[strategies]") {
  const ModelCase gpt = five_layers().model;
  const auto cut = [&](const char* layers, OptionValues more = {}) {
    more.set("layers", layers);
    return refusal(gpt, {"pp", ranks(2), more});
  };
  CHECK_THAT(cut("2, 2"),
             Contains("layers = 2, 2: expected 2 numbers, one a stage, with the sum 5, the model's layers; "
                      "found 2 with the sum 4"));
  CHECK_THAT(cut("1, 2, 2"), Contains("found 3 with the sum 5"));
  CHECK_THAT(cut("3, 2", {{"schedule", "interleaved"}}),
             Contains("expected 4 numbers, one a chunk, in the order of the layers, with the sum 5"));
  CHECK_THAT(cut("18446744073709551615, 6"), Contains("expected 2 numbers"));
  for (const char* layers : {"2,", ",5", "2;3", "2 3", "-1,6", "5,x", "99999999999999999999,1", ","}) {
    CHECK_THAT(cut(layers), Contains(std::string("layers = ") + layers + ": expected numbers of layers"));
  }
  CHECK_THAT(refusal(gpt, {"3d", {{"data", 2}}, {{"layers", "5"}}}),
             Contains("layers = 5 has no effect without stages, of which [mesh] pipe is the number"));
  CHECK(refusal(gpt, {"3d", {{"data", 2}, {"pipe", 1}}, {{"layers", "5"}}}) == "nothing");
  CHECK_THAT(refusal(gpt, {"3d", {{"data", 2}, {"pipe", 1}}, {{"layers", "2,3"}}}),
             Contains("expected 1 number, one a stage, with the sum 5, the model's layers; found 2 with the sum 5"));
}

TEST_CASE("an option whose mesh axis has size 1 is accepted, and defaults are accepted everywhere", "[strategies]") {
  const ModelCase gpt = plain_gpt().model;
  const std::vector<plan::MeshAxis> mesh = {{"data", 2}, {"pipe", 1}};
  for (const std::string& schedule : all_schedules()) {
    Choice choice{"3d", mesh};
    add_schedule(choice.options, schedule);
    CHECK(refusal(gpt, choice) == "nothing");
  }
  CHECK(refusal(gpt, {"pp", ranks(2), {{"schedule", "gpipe"}, {"chunks", std::int64_t{2}}}}) == "nothing");
  CHECK(refusal(gpt, {"3d", {{"data", 2}}, {{"schedule", "1f1b"}, {"unit", "layer"}, {"keep", ""}}}) == "nothing");
  const OptionValues gathered = {{"zero", std::int64_t{3}}, {"unit", "tensor"}, {"keep", "*"}};
  CHECK(refusal(gpt, {"3d", {{"data", 2}}, gathered}) == "nothing");
  const Choice most{"pp", ranks(2), {{"schedule", "interleaved"}, {"chunks", std::int64_t{1024}}}};
  CHECK(answer_by(gpt, most).plan.pipeline.chunks.size() == 2048);
}
