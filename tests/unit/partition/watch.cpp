// Which memory of the states is watched, and where in the programs it is verified and hashed.

#include <algorithm>
#include <map>
#include <string>

#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using partition::Programs;
using partition::Watch;

namespace {

ModelCase biased_gpt() {
  return training_case("gpt", "gpt",
                       {{"layers", "2"}, {"heads", "2"}, {"width", "16"}, {"context", "4"}, {"bias", "true"}},
                       {.vocab = 10}, {.batch = 4});
}

Programs programs_of(const graph::Graph& graph, const plan::Plan& plan, const char* device, bool watches = true) {
  return partition::programs_of(
      graph, partition::split(graph, plan),
      {.device = device::Device::find(device), .rank = plan.mesh.empty() ? 0 : 1, .watches = watches});
}

bool lasts(graph::StateKind kind) { return kind == graph::StateKind::parameter || kind == graph::StateKind::optimizer; }

/// How often a program of role `once` does that with each range.
std::map<std::uint32_t, int> counts(const Programs& programs, Watch::When when) {
  std::map<std::uint32_t, int> of_ranges;
  for (const Watch& watch : programs.find(graph::Role::once).watches) {
    of_ranges[watch.range] += watch.when == when ? 1 : 0;
  }
  return of_ranges;
}

}  // namespace

TEST_CASE("watched ranges cover lasting states exactly once, and nothing else", "[partition]") {
  const ModelCase model = biased_gpt();
  for (const char* device : {"cpu", "reference", "unmapped"}) {
    for (const plan::Plan& plan : {plan::Plan{}, data_parallel(2), tensor_parallel(2)}) {
      INFO(device << ", " << plan.mesh.size() << " mesh axes");
      const Programs programs = programs_of(model.graph, plan, device);
      std::map<graph::StateId, std::uint64_t> covered;
      std::uint64_t end = 0;
      std::vector<partition::Watched> watched = programs.watched;
      std::ranges::sort(watched, {}, &partition::Watched::offset);
      for (const partition::Watched& range : watched) {
        CHECK(range.offset >= end);
        end = range.offset + range.bytes;
        const partition::Buffer& state = programs.states[range.state];
        CHECK(range.offset >= state.offset);
        CHECK(end <= state.offset + state.bytes);
        covered[range.state] += range.bytes;
      }
      for (const graph::StateId state : model.graph.states.ids()) {
        CHECK(covered[state] == (lasts(model.graph.states[state].kind) ? programs.states[state].bytes : 0));
      }
    }
  }
}

TEST_CASE("each watched range is verified once in every step, on the cpu by the update itself", "[partition]") {
  const ModelCase model = biased_gpt();
  for (const plan::Plan& plan : {plan::Plan{}, data_parallel(2), tensor_parallel(2)}) {
    const Programs programs = programs_of(model.graph, plan, "cpu");
    for (const auto& [range, count] : counts(programs, Watch::When::in_place)) {
      INFO(programs.states[programs.watched[range].state].name);
      CHECK(count == 1);
    }
    CHECK(counts(programs, Watch::When::in_place).size() == programs.watched.size());
  }
  const Programs readable = programs_of(model.graph, {}, "reference");
  CHECK(counts(readable, Watch::When::before).size() == readable.watched.size());
  for (const Watch::When when : {Watch::When::before, Watch::When::after}) {
    for (const auto& [range, count] : counts(readable, when)) {
      INFO(readable.states[readable.watched[range].state].name);
      CHECK(count == 1);
    }
  }
}

TEST_CASE("hashes lie behind everything else, and the plan counts them", "[partition]") {
  const ModelCase model = biased_gpt();
  const Programs plain = programs_of(model.graph, {}, "cpu", false);
  const Programs watching = programs_of(model.graph, {}, "cpu");
  CHECK(plain.watched.empty());
  CHECK(watching.hashes_offset >= plain.arena_bytes);
  CHECK(watching.hashes_bytes() == watching.watched.size() * sizeof(partition::KeptHash));
  CHECK(watching.arena_bytes == watching.hashes_offset + watching.hashes_bytes());
  CHECK(watching.memory.peak >= plain.memory.peak);
  for (const partition::Program& program : watching.programs) {
    CHECK(program.transient_bytes <= watching.hashes_offset);
  }
  const Programs apart = programs_of(model.graph, {}, "unmapped");
  CHECK(apart.staging_bytes == apart.hashes_offset + apart.hashes_bytes());
}
