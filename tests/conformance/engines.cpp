// An engine that breaks one rule at a time, and the case that notices it.

#include <string>
#include <vector>

#include "core/conformance/conformance.h"
#include "tests/support/catch.h"

using namespace shardrun;
using Catch::Contains;
using conformance::Finding;

namespace {

std::vector<Finding> check_engine(const std::string& engine, const std::vector<std::string>& settings,
                                  const conformance::CaseWords& words = {}) {
  return conformance::check_plugin({SHARDRUN_ENGINES, SHARDRUN_BUILT_PLUGINS}, plugins::PluginKind::engine, engine,
                                   {.member_command = {SHARDRUN_CONFORMANCE_PROGRAM, "--member"},
                                    .words = words,
                                    .settings = settings,
                                    .silence_s = 60});
}

}  // namespace

TEST_CASE("engines that keep the rules have no problem", "[conformance]") {
  const std::string engine = GENERATE("brightness", "faulty", "data_parallel", "heat", "pipeline", "ring",
                                      "tensor_parallel", "unsharded", "zero3");
  const std::vector<Finding> findings = check_engine(engine, {});

  for (const Finding& finding : findings) {
    INFO(engine << ", " << finding.name);
    CHECK(finding.problem == "");
  }
  CHECK(findings.size() >= conformance::case_names(plugins::PluginKind::engine).size());
}

TEST_CASE("an engine that breaks a rule is found", "[conformance]") {
  struct Broken {
    std::string fault;
    std::string word;  ///< a word in the name of the case that finds it
    std::string problem;
  };
  const auto [fault, word, problem] = GENERATE(values<Broken>({
      {"refuses", "declared options", "it accepts none of the small jobs that this suite tries, the first one so"},
      {"declares", "whoever asks", "it declares other parameters when it is asked again"},
      {"gap", "whoever asks", "the ranks' parts of 'cut' have 4 of its 8 elements"},
      {"gradient", "central differences", "the gradient of layer_0/weights: element 0 is"},
      {"unreduced", "any number of ranks", "the ranks that hold 'layer_0/weights' differ"},
      {"rows", "any number of ranks", "there are no rows"},
      {"width", "any number of ranks", "its predictions for 7 samples are [7, 4], expected [7, 3]"},
      {"overruns", "any number of ranks", "it writes outside of the memory of 'layer_1/weights'"},
      {"axes", "any number of ranks",
       "rank 1 calls all_gather with axis 1, and rank 0 with 0: all ranks call the same"},
      {"unawaited", "any number of ranks", "the engine ends with 1 messages for which it has not waited"},
      {"remembers", "results again", "it gives other results for the same samples and parameters"},
      {"load", "by the names", "after load_checkpoint element 0 of 'layer_1/weights' is"},
      {"tolerant", "without the tensors", "accepts a file without its parameters and says nothing"},
      {"swaps", "in order", "it writes predictions for 3 of 3 records, or not those that forward returns"},
  }));
  const std::vector<Finding> findings = check_engine("faulty", {"fault=" + fault}, {word});

  REQUIRE_FALSE(findings.empty());
  INFO(fault);
  CHECK_THAT(findings.front().problem, Contains(problem));
}
