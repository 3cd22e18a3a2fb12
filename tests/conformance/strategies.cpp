// Strategies that each break one rule, and the case that notices it.

#include <algorithm>
#include <string>
#include <vector>

#include "core/conformance/conformance.h"
#include "tests/support/catch.h"

using namespace shardrun;
using Catch::Contains;
using conformance::Finding;

namespace {

const std::vector<std::string> member_command = {SHARDRUN_CONFORMANCE_PROGRAM, "--member"};

std::vector<Finding> check(const std::string& fault, const conformance::CaseWords& words, std::int64_t silence_s = 60) {
  return conformance::check_plugin({SHARDRUN_FAULTY}, plugins::PluginKind::strategy, "faulty_" + fault,
                                   {.member_command = member_command, .words = words, .silence_s = silence_s});
}

/// The problem that is found by the first case with this word in its name.
std::string problem(const std::string& fault, const std::string& word, std::int64_t silence_s = 60) {
  const std::vector<Finding> findings = check(fault, {word}, silence_s);
  REQUIRE_FALSE(findings.empty());
  return findings.front().problem;
}

std::vector<std::string> failed(const std::vector<Finding>& findings) {
  std::vector<std::string> names;
  for (const Finding& finding : findings) {
    if (!finding.problem.empty()) {
      names.push_back(finding.name);
    }
  }
  return names;
}

}  // namespace

TEST_CASE("a strategy that keeps the rules has no problem", "[conformance]") {
  const std::vector<Finding> findings = check("sound", {});

  CHECK(failed(findings).empty());
  CHECK(findings.size() >= conformance::case_names(plugins::PluginKind::strategy).size());
}

TEST_CASE("a plan that differs between calls, processes or instances is found", "[conformance]") {
  CHECK_THAT(problem("changing", "gpt over 1 rank"),
             Contains("asked twice for the same, it answers differently: 'buckets of 1 bytes' and 'buckets of 2"));
  CHECK_THAT(problem("by_rank", "gpt over 1 rank"),
             Contains("another process, asked for the same, gets another") && Contains("'buckets of 0 bytes'"));
  CHECK_THAT(problem("numbered", "many instances"), Contains("instances answers otherwise than a fresh one"));
}

TEST_CASE("a crash fails its case, and the others run", "[conformance]") {
  const std::vector<Finding> findings = check("crashing", {"over"});

  CHECK(failed(findings) == std::vector<std::string>{"gpt over 3 ranks", "mlp over 3 ranks", "field over 3 ranks"});
  CHECK(std::ranges::all_of(findings, [](const Finding& finding) {
    return finding.problem.empty() || finding.problem.find("was ended by signal 6") != std::string::npos;
  }));
  CHECK(findings.back().problem.empty());
}

TEST_CASE("a hang fails its case", "[conformance]") {
  CHECK_THAT(problem("hanging", "mlp over 3 ranks", 3),
             Contains("ranks 0, 1: it hangs: nothing is heard of it for 3 s"));
}

TEST_CASE("after a failed opening no other case runs", "[conformance]") {
  const std::vector<Finding> findings = check("broken", {});

  REQUIRE(findings.size() == 1);
  CHECK(findings[0].name == "opening");
  CHECK_THAT(findings[0].problem, Contains("was ended by signal 6"));
}

TEST_CASE("writes past the error's buffer are found", "[conformance]") {
  CHECK_THAT(problem("overflowing", "gpt over 1 rank"), Contains("wrote outside of the sr_error"));
  CHECK_THAT(problem("endless", "gpt over 1 rank"), Contains("has no end"));
  CHECK(problem("long_reason", "gpt over 4 ranks").empty());
  CHECK_THAT(problem("long_reason", "reasons longer"), Contains("wrote outside of the sr_error"));
}

TEST_CASE("an answer that is neither a plan nor a refusal is found", "[conformance]") {
  CHECK_THAT(problem("silent", "gpt over 1 rank"), Contains("status -1 and no reason"));
  CHECK_THAT(problem("failing", "gpt over 1 rank"), Contains("status -2"));
  CHECK_THAT(problem("throwing", "gpt over 1 rank"), Contains("let an exception out") && Contains("across the border"));
  CHECK_THAT(problem("illegal", "gpt over 1 rank"), Contains("place_axis('no such axis')"));
  CHECK_THAT(problem("too_small", "gpt over 2 ranks"), Contains("has 1 places, but the job has 2 ranks"));
  CHECK(problem("refusing", "gpt over 1 rank").empty());
  CHECK_THAT(problem("refusing", "a plan for one"), Contains("refuses every job") && Contains("never in the mood"));
}

TEST_CASE("bad declarations of options and crashes at their limits are found", "[conformance]") {
  CHECK_THAT(problem("helpless", "declared options"), Contains("the help of option 'depth' is ''"));
  CHECK_THAT(problem("limits", "options at their limits"), Contains("was ended by signal 6"));
}

TEST_CASE("a strategy that ignores struct strides is found", "[conformance]") {
  CHECK_THAT(problem("strides", "a host of a later release"), Contains("whose structs and strides have grown"));
}

TEST_CASE("a strategy that uses files or random numbers is found", "[conformance]") {
  CHECK_THAT(problem("reading", "to make a plan"), Contains("it calls openat; it may touch nothing but memory"));
  CHECK_THAT(problem("drawing", "to make a plan"), Contains("it calls getrandom"));
  CHECK_THAT(problem("touching", "to make an instance"), Contains("it calls openat"));
  CHECK_THAT(problem("holding", "leave nothing behind"), Contains("descriptors are open after instances were closed"));
}

TEST_CASE("a hook that keeps the rules has no problem", "[conformance]") {
  CHECK(failed(check("hook_sound", {})).empty());
}

TEST_CASE("faults of hooks are found", "[conformance]") {
  CHECK_THAT(problem("hook_changing", "hooks"),
             Contains("hook sync_gradients, asked again for 1 elements, plans other"));
  CHECK_THAT(problem("hook_differs", "hooks"), Contains("leaves members 0 and 1 with other tensors"));
  CHECK_THAT(problem("hook_failing", "hooks"), Contains("gpt over 1 with") && Contains("it will not"));
  CHECK_THAT(problem("hook_illegal", "hooks"), Contains("sends and receives buffer 0") && Contains("7 elements"));
  CHECK_THAT(problem("hook_missing", "hooks"), Contains("plans the hook sync_gradients, but has no sync_gradients"));
  CHECK_THAT(problem("hook_outside", "hooks"), Contains("it wrote outside of its buffers"));
  CHECK_THAT(problem("hook_remembers", "hooks"), Contains("it keeps what belongs into its states"));
  CHECK_THAT(problem("hook_unwritten", "hooks"), Contains("or reads what it has not written"));
  CHECK_THAT(problem("hook_parting", "hooks"), Contains("hook after_step leaves members 0 and 1 with other tensors"));
  // The hook divides by the number of samples, which is 0 on one member. A sanitizer ends that process in its own way.
  CHECK_THAT(problem("hook_nobody", "hooks"), Contains("was ended by signal 8") || Contains("exited with code"));
}
