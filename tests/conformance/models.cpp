// Models that each break one rule, and the case that notices it.

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "core/conformance/conformance.h"
#include "tests/support/catch.h"

using namespace shardrun;
using Catch::Contains;
using conformance::Finding;

namespace {

std::vector<Finding> check_built(const std::string& model, const conformance::CaseWords& words,
                                 const std::vector<std::string>& settings = {}) {
  return conformance::check_plugin({SHARDRUN_FAULTY, SHARDRUN_BUILT_PLUGINS}, plugins::PluginKind::model, model,
                                   {.member_command = {SHARDRUN_CONFORMANCE_PROGRAM, "--member"},
                                    .words = words,
                                    .settings = settings,
                                    .silence_s = 60});
}

std::vector<Finding> check_model(const std::string& fault, const conformance::CaseWords& words) {
  return check_built("faulty_" + fault, words);
}

/// Runs the first case that has the word in its name, and returns the problem that it found.
std::string model_problem(const std::string& fault, const std::string& word) {
  const std::vector<Finding> findings = check_model(fault, {word});
  REQUIRE_FALSE(findings.empty());
  return findings.front().problem;
}

constexpr const char* kernels = "float32 kernels equal";
constexpr const char* cut = "every factor cut";
constexpr const char* gradients = "gradients equal";

}  // namespace

TEST_CASE("a model that keeps the rules has no problem", "[conformance]") {
  const std::vector<Finding> findings = check_model("sound", {});

  for (const Finding& finding : findings) {
    INFO(finding.name);
    CHECK(finding.problem == "");
  }
  CHECK(findings.size() >= conformance::case_names(plugins::PluginKind::model).size());
}

TEST_CASE("decoding with caches that computes something else is found", "[conformance]") {
  CHECK(model_problem("decode_sound", "decode with caches") == "");
  for (const char* fault : {"decode_unturned", "decode_wrong_values", "decode_short_window"}) {
    CAPTURE(fault);
    CHECK_THAT(model_problem(fault, "decode with caches"),
               Contains(" by 'decode' and ") && Contains(" by 'predict', which computes all positions"));
  }
}

TEST_CASE("a check says what it leaves out, and why", "[conformance]") {
  const auto notes_of = [](const std::string& model, const std::string& word) {
    return check_built(model, {word}).front().notes;
  };
  CHECK(std::ranges::count_if(notes_of("heat1d", "as strategies split"), [](const std::string& note) {
          return note.starts_with("not compared, dp over 2 and 3 ranks: it splits the batch, and this model has none");
        }) == 1);
  const std::vector<std::string> no_loss = {"nothing to check: the model has no loss"};
  CHECK(notes_of("heat1d", "the gradient of the loss") == no_loss);
  const std::vector<std::string> no_ops = {"nothing to check: the model has no ops of its own"};
  for (const std::string word : {kernels, cut, gradients, "own ops: attributes"}) {
    CHECK(notes_of("heat1d", word) == no_ops);
  }
  CHECK(check_model("sound", {kernels}).front().notes.empty());
}

TEST_CASE("a wrong gradient of an op is found, in the op and in the loss", "[conformance]") {
  CHECK_THAT(model_problem("wrong_gradient", gradients),
             Contains("op 'ramp' of model 'faulty_wrong_gradient'") &&
                 Contains("the gradient with respect to operand 0: element 0 is") &&
                 Contains("central differences of the float64 kernel give"));
  CHECK_THAT(model_problem("wrong_gradient", "the gradient of the loss"),
             Contains("trained on arrays: the gradient of w: element") && Contains("central differences of the loss"));
  CHECK_THAT(model_problem("no_gradient", gradients), Contains("element 0 is 0, and central differences"));
  CHECK_THAT(model_problem("other_type", gradients),
             Contains("with respect to operand 0 is f32[], expected the operand's type, f32[b 5, d 3]"));
  CHECK_THAT(model_problem("input_in_gradient", gradients),
             Contains("the gradient of op 'ramp' of model 'faulty_input_in_gradient'") &&
                 Contains("a gradient is made of ops: it may use call and type_of only"));
}

TEST_CASE("an error with a batch of one sample is found", "[conformance]") {
  CHECK_THAT(model_problem("wrong_gradient_of_one", "the gradient of the loss"),
             Contains("trained on arrays, a batch of 1: the gradient of w: element"));
}

TEST_CASE("a wrong rule of an op is found", "[conformance]") {
  CHECK(model_problem("wrong_rule", kernels) == "");
  CHECK_THAT(model_problem("wrong_rule", cut),
             Contains("factor d of the rule 'b d -> b d' cut in 2, and joined again"));
  CHECK_THAT(model_problem("placeless", cut), Contains("factor d of the rule 'b d -> b d' cut in 2, and joined again"));
  CHECK_THAT(model_problem("wrong_identity", cut),
             Contains("factor c of the rule 'b* c -> b*; reduced c (max)' cut in 3, and joined again"));
  CHECK_THAT(model_problem("wrong_rule", "every axis split"),
             Contains("trained on arrays, the axis mlp over 2 ranks") && Contains("float64 reference"));
  CHECK_THAT(model_problem("wrong_rule", "as strategies split"), Contains("split by strategy tp"));
}

TEST_CASE("a wrong window of an op is found", "[conformance]") {
  CHECK(model_problem("short_window", kernels) == "");
  CHECK_THAT(model_problem("short_window", cut),
             Contains("factor i of the rule '2i[0..0] d -> i d' cut in 2, and joined again"));
  CHECK_THAT(model_problem("placeless_window", cut),
             Contains("factor i of the rule '2i[-1..0] d -> i d' cut in 2, and joined again"));
}

TEST_CASE("a kernel that writes outside its results is found", "[conformance]") {
  CHECK_THAT(model_problem("out_of_bounds", kernels), Contains("op 'ramp'") && Contains("wrote past a buffer"));
  CHECK_THAT(model_problem("before", kernels), Contains("wrote past a buffer"));
  CHECK_THAT(model_problem("scratch", kernels), Contains("wrote past a buffer"));
  CHECK_THAT(model_problem("operand", kernels), Contains("changed its operand 0"));
}

TEST_CASE("wrong results of a kernel are found", "[conformance]") {
  CHECK_THAT(model_problem("unwritten", kernels),
             Contains("op 'unwritten'") && Contains("result 0 depends on what its memory held before"));
  CHECK_THAT(model_problem("unset_scratch", kernels), Contains("depends on what its memory held before"));
  CHECK_THAT(model_problem("different", kernels), Contains("the float32 kernel: element 0 of result 0 is"));
  CHECK_THAT(model_problem("by_thread", kernels), Contains("on 2 threads: element"));
  CHECK_THAT(model_problem("limited", "own ops: attributes"), Contains("{scale=5}") && Contains("5 is too much"));
}

TEST_CASE("a graph that differs between calls or processes, or needs a file, is found", "[conformance]") {
  CHECK_THAT(model_problem("changing", "the same graph"), Contains("asked twice, it writes different graphs"));
  CHECK_THAT(model_problem("by_process", "the same graph"), Contains("another process writes another graph"));
  CHECK_THAT(model_problem("reading", "no file"), Contains("open"));
}

TEST_CASE("a model that accepts no job is reported with the options first tried", "[conformance]") {
  CHECK_THAT(model_problem("input_in_gradient", "the same graph"),
             Contains("accepts none of the small jobs") && Contains("the first one (its defaults): "));
}

TEST_CASE("a model that wants other options is skipped, and the report says so once", "[conformance]") {
  const std::vector<Finding> findings = check_built("faulty_picky", {});
  const auto wrong = std::ranges::find_if(findings, [](const Finding& each) { return !each.problem.empty(); });
  REQUIRE(wrong != findings.end());
  CHECK(wrong->is_skipped);
  CHECK(std::next(wrong) == findings.end());
  CHECK_THAT(wrong->problem, Catch::StartsWith("not checked, needs --set KEY=VALUE for its options") &&
                                 Contains("the first one (its defaults): only 3 is possible"));
  for (const Finding& finding : check_built("faulty_picky", {"same graph", "gradient of the loss"}, {"scale=3"})) {
    INFO(finding.name);
    CHECK(finding.problem == "");
  }
}

TEST_CASE("a crash at an option's limit is found, and the other cases run", "[conformance]") {
  const std::vector<Finding> findings = check_model("crashing", {"options", "own ops"});

  REQUIRE(findings.size() >= 6);
  CHECK(findings[0].problem == "");
  const auto failed = std::ranges::find_if(findings, [](const Finding& each) { return !each.problem.empty(); });
  REQUIRE(failed != findings.end());
  CHECK(failed->name == "options at their limits");
  CHECK(std::ranges::count_if(findings, [](const Finding& each) { return !each.problem.empty(); }) == 1);
}
