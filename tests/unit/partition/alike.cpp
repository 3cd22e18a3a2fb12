// Ranks that share a program: what is reported of them equals what each rank's own program says.

#include "core/partition/alike.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using partition::Programs;

namespace {

Programs programs_of(const graph::Graph& graph, const partition::Partition& partition, std::int64_t rank) {
  return partition::programs_of(graph, partition, {.device = device::Device::find("cpu"), .rank = rank});
}

std::vector<std::size_t> all_of(const Programs& programs) {
  std::vector<std::size_t> numbers;
  for (std::size_t p = 0; p < programs.programs.size(); ++p) {
    numbers.push_back(p);
  }
  return numbers;
}

/// The bytes sent by a program's own transfers, without zeros.
partition::SentBytes sent_by(const Programs& programs) {
  partition::SentBytes sent;
  for (const partition::Program& program : programs.programs) {
    add_sent_bytes(sent, programs, program);
  }
  for (auto& [axis, collectives] : sent) {
    std::erase_if(collectives, [](const auto& entry) { return entry.second == 0; });
  }
  std::erase_if(sent, [](const auto& entry) { return entry.second.empty(); });
  return sent;
}

std::vector<plan::Plan> plans() {
  return {data_parallel(3, 400),
          tensor_parallel(2),
          tensor_parallel(3),
          plan_of({{"data", 2}, {"model", 3}},
                  {{"batch", {"data"}}, {"heads", {"model"}}, {"mlp", {"model"}}, {"vocab", {"model"}}}, 400),
          plan_of({{"a", 2}, {"b", 3}}, {{"batch", {"a", "b"}}, {"mlp", {"b", "a"}}}),
          plan_of({{"x", 4}}, {{"x", {"x"}}})};
}

}  // namespace

TEST_CASE("ranks that are reported as alike have the same memory and traffic", "[alike]") {
  std::size_t shared = 0;
  for (const ModelCase& model : model_cases()) {
    for (const plan::Plan& plan : plans()) {
      const partition::Partition partition = partition::split(model.graph, plan);
      const mesh::Mesh& mesh = partition.placements.mesh;
      std::vector<std::int64_t> seen;
      for (const std::vector<std::int64_t>& alike : partition::alike_ranks(
               model.graph, partition, *partition::functions_of(model.graph, partition, partition::StageId(0)))) {
        const Programs first = programs_of(model.graph, partition, alike.front());
        const partition::SentTable table = partition::sent_table(first, all_of(first));
        for (const std::int64_t rank : alike) {
          INFO(model.name << ", rank " << rank << " like " << alike.front());
          const Programs own = programs_of(model.graph, partition, rank);
          CHECK(own.memory == first.memory);
          CHECK(partition::sent_of(table, mesh::coordinates_of(mesh, rank)) == sent_by(own));
          seen.push_back(rank);
        }
        shared += alike.size() - 1;
      }
      std::sort(seen.begin(), seen.end());
      CHECK(seen.size() == static_cast<std::size_t>(mesh.ranks()));
      CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    }
  }
  CHECK(shared > 0);
}
