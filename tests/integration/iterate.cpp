// The heat equation, run by the program and by a loop.

#include <cmath>
#include <cstring>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;

namespace {

constexpr std::size_t cells = 1003;

std::vector<float> bump(double width) {
  std::vector<float> u(cells);
  for (std::size_t i = 0; i < cells; ++i) {
    const double x = (static_cast<double>(i) + 0.5) / static_cast<double>(cells) - 0.5;
    u[i] = static_cast<float>(std::exp(-0.5 * (x / width) * (x / width)));
  }
  return u;
}

/// The same arithmetic one cell after the other. `wall` is null on a ring.
std::vector<float> iterate_serially(std::vector<float> u, int steps, const float* wall) {
  std::vector<float> next(cells);
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < cells; ++i) {
      const float left = i > 0 ? u[i - 1] : wall == nullptr ? u[cells - 1] : *wall;
      const float right = i + 1 < cells ? u[i + 1] : wall == nullptr ? u[0] : *wall;
      next[i] = 0.5F * u[i] + 0.25F * left + 0.25F * right;
    }
    u.swap(next);
  }
  return u;
}

std::vector<float> temperature(const std::filesystem::path& path) {
  const shardrun::checkpoint::SafetensorsFile file(path);
  const std::span<const std::byte> bytes = file.at("temperature").bytes;
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

TEST_CASE("a simulation equals the serial loop bit for bit, whatever the threads", "[program]") {
  const TemporaryFolder folder;
  write_file(folder / "heat.ini",
             "[job]\ntask = iterate\noutput = run\n[model]\nname = heat1d\ncells = 1003\nbump = 0.05\n[iterate]\nsteps "
             "= 1000\n");
  const float wall = 0.375F;
  const auto run = [&](std::vector<std::string> overrides) {
    const Ended ended = run_program(folder.path(), with_settings({"heat.ini"}, overrides));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    CHECK(ended.out.find("loss") == std::string::npos);
    return temperature(folder / "run/state.safetensors");
  };
  const std::vector<float> ring = iterate_serially(bump(0.05), 1000, nullptr);
  const std::vector<float> walled = iterate_serially(bump(0.05), 1000, &wall);
  REQUIRE(ring != walled);
  for (const char* threads : {"job.threads=1", "job.threads=3"}) {
    CHECK(run({threads}) == ring);
    CHECK(run({threads, "model.boundary=fixed", "model.wall=0.375"}) == walled);
  }
}

TEST_CASE("a simulation of no steps leaves the first state", "[program]") {
  const TemporaryFolder folder;
  write_file(folder / "heat.ini",
             "[job]\ntask = iterate\n[model]\nname = heat1d\ncells = 1003\n[iterate]\nsteps = 0\n");
  REQUIRE(run_program(folder.path(), {"heat.ini"}).code == 0);
  CHECK(temperature(folder / "runs/heat/state.safetensors") == bump(0.1));
  const boost::json::object summary = read_json(folder / "runs/heat/summary.json");
  CHECK(summary.at("status") == "finished");
  CHECK(summary.at("steps") == 0);
  CHECK(summary.at("loss").is_null());
  CHECK(read_json_lines(folder / "runs/heat/metrics.jsonl").empty());
}
