// Where transfers of a device that the host cannot address have their data: in its memory, if their transport moves
// that, else in staging memory.

#include <algorithm>
#include <set>
#include <string>

#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using partition::Programs;

namespace {

const ModelCase& model() {
  static const ModelCase mlp =
      training_case("mlp", "mlp", {{"hidden", "64"}}, {.features = 3, .outputs = 2}, {.batch = 4});
  return mlp;
}

constexpr std::uint64_t scratch_bytes = 4096;

/// A rank's programs on a mesh of data and model. `moves`: which axes' transports move the device's memory.
Programs programs_of(const std::string& device, IdVector<mesh::AxisId, bool> moves) {
  const plan::Plan plan = plan_of({{"data", 2}, {"model", 2}}, {{"batch", {"data"}}, {"mlp", {"model"}}}, 0);
  return partition::programs_of(
      model().graph, partition::split(model().graph, plan),
      {.device = device::Device::find(device),
       .rank = 1,
       .transfer_scratch = [](const partition::Transfer&, std::int64_t) { return scratch_bytes; },
       .moves_device_memory = std::move(moves),
       .agreements = true});
}

}  // namespace

TEST_CASE("only transfers along axes whose transport moves host memory are staged", "[partition]") {
  const mesh::AxisId data(0);
  const Programs programs = programs_of("unmapped", {true, false});
  std::set<mesh::AxisId> seen;
  for (const partition::Program& program : programs.programs) {
    for (const partition::Transfer& transfer : program.transfers) {
      INFO(program.function << ": " << transfer.name << " along axis " << transfer.axis.number());
      const bool is_direct = transfer.axis == data;
      CHECK(transfer.is_direct == is_direct);
      CHECK(transfer.staged.empty() == is_direct);
      REQUIRE(transfer.scratch.exists());
      const partition::Buffer& scratch = program.buffers[transfer.scratch];
      CHECK(scratch.is_staged == !is_direct);
      CHECK(scratch.offset + scratch.bytes <= (is_direct ? programs.arena_bytes : programs.staging_bytes));
      seen.insert(transfer.axis);
    }
  }
  CHECK(seen.size() == 2);
}

TEST_CASE("the plan counts staging memory and the device's memory", "[partition]") {
  const Programs staged = programs_of("unmapped", {});
  const Programs one = programs_of("unmapped", {true, false});
  const Programs direct = programs_of("unmapped", {true, true});
  const Programs on_host = programs_of("cpu", {});
  CHECK(staged.staging_bytes > one.staging_bytes);
  CHECK(one.staging_bytes > direct.staging_bytes);
  CHECK(direct.host_offset == 0);  // only what the host reads and writes itself
  CHECK(direct.memory.staging >= direct.host_bytes);
  CHECK(direct.memory.staging < staged.memory.staging);
  // Scratch is in the arena, as that of the host is.
  CHECK(direct.arena_bytes == on_host.arena_bytes);
  CHECK(staged.arena_bytes < direct.arena_bytes);
  CHECK(direct.memory.peak - direct.memory.staging == on_host.memory.peak);
  CHECK(programs_of("cpu", {true, true}).memory == on_host.memory);
}

TEST_CASE("a program marks its transfers in the device's memory", "[partition]") {
  const std::string text = to_string(programs_of("unmapped", {true, false}));
  CHECK(text.find("over data: 1 -> 1 elements in the device's memory\n") != std::string::npos);
  CHECK(text.find("over model: 1 -> 1 elements\n") != std::string::npos);
}
