// Strategies on a device whose memory the host cannot address and whose work is done late.

#include "core/partition/launch_order.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/errors.h"
#include "tests/unit/strategies/device_choices.h"

using namespace shardrun;
using namespace shardrun::test;

TEST_CASE("every strategy agrees with the reference on a device that the host cannot address", "[strategies]") {
  const std::vector<Choice> choices = choices_of_devices();
  for (std::size_t c = 0; c < choices.size(); c += depth<std::size_t>(1, 1, 5)) {
    check_agrees(plain_gpt(), choices[c], "unmapped");
    check_agrees(full_gpt(), choices[c], "unmapped");
  }
  check_agrees(mlp_of_numbers(), of("zero3", ranks(3)), "unmapped");
  check_agrees(mlp_of_labels(), of("topk", ranks(3), {{"ratio", 1.0}}), "unmapped");
}

TEST_CASE("every pipeline launches transfers in the device's memory in one order", "[strategies]") {
  std::vector<Choice> pipelines;
  for (const std::string& schedule : all_schedules()) {
    for (const std::uint32_t stages : {2U, 3U, 4U, 8U}) {
      pipelines.push_back(of("pp", ranks(stages), {}, schedule));
    }
    pipelines.push_back(of("3d", {{"data", 2}, {"model", 2}, {"pipe", 2}}, {{"zero", std::int64_t{2}}}, schedule));
    pipelines.push_back(of("3d", {{"data", 2}, {"pipe", 3}}, {{"zero", std::int64_t{3}}}, schedule));
  }
  for (const VerifyCase& checked : {plain_gpt(), full_gpt(), five_layers(), mlp_of_labels()}) {
    for (std::size_t p = 0; p < pipelines.size(); p += depth<std::size_t>(1, 1, 12)) {
      const Choice& choice = pipelines[p];
      INFO(checked.model.name << " by " << to_string(choice));
      const partition::Partition partition = split_by(checked.model, choice);
      const mesh::Mesh& mesh = partition.placements.mesh;
      partition::LaunchOrders orders;
      std::size_t launches = 0;
      for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
        const partition::Programs programs =
            partition::programs_of(checked.model.graph, partition,
                                   {.device = device::Device::find("unmapped"),
                                    .rank = rank,
                                    .moves_device_memory = IdVector<mesh::AxisId, bool>(mesh.axes.size(), true),
                                    .agreements = true});
        orders.add(partition.stage_at(mesh::coordinates_of(mesh, rank)), programs);
        launches += partition::launches_of(programs.programs.front()).size();
      }
      CHECK(error_of([&] { orders.check(partition.pipeline); }) == "nothing");
      CHECK(launches > 0);
    }
  }
}
