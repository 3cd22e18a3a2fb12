// The heat equation, run by the program and by a loop.

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/npy.h"

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

TEST_CASE("a simulation equals the serial loop bit for bit, with any number of threads", "[program]") {
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

namespace {

struct Heat {
  std::string name;
  std::string model;
  std::string split;
};

void write_job(const std::filesystem::path& folder, const Heat& heat, int ranks) {
  write_file(folder / "heat.ini", "[job]\ntask = iterate\nthreads = 1\nranks = " + std::to_string(ranks) +
                                      (ranks > 1 ? "\nstrategy = named\n" + heat.split : std::string("\n")) +
                                      "[model]\nname = " + heat.model + "\n[iterate]\nsteps = 1000\n");
}

std::string text_of_temperature(const std::filesystem::path& path) {
  const std::vector<float> values = temperature(path);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace

TEST_CASE("two runs of half the steps have the bits of one run, however each is split", "[program]") {
  const Heat heat = GENERATE(Heat{"line", "heat1d\ncells = 103\nboundary = fixed\nwall = 0.375", "[sharding]\nx = d\n"},
                             Heat{"plane", "heat2d\nrows = 17\ncolumns = 13", "[sharding]\nx = d\n"});
  INFO(heat.name);
  const TemporaryFolder folder;
  const auto run = [&](int ranks, std::vector<std::string> settings) {
    write_job(folder.path(), heat, ranks);
    const Ended ended = run_program(folder.path(), with_settings({"heat.ini"}, settings));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return ended.out;
  };
  run(1, {"job.output=whole"});
  const std::string whole = text_of_temperature(folder / "whole/state.safetensors");
  run(1, {"job.output=first", "iterate.steps=500"});
  REQUIRE(text_of_temperature(folder / "first/state.safetensors") != whole);
  run(2, {"job.output=split", "iterate.steps=500"});
  for (const int ranks : {1, 2, 3}) {
    for (const char* from : {"iterate.from=first", "iterate.from=split/state.safetensors"}) {
      const std::string out = run(ranks, {"job.output=second", "iterate.steps=500", from});
      CHECK(text_of_temperature(folder / "second/state.safetensors") == whole);
      CHECK(out.find("step 1000/1000 100%") != std::string::npos);
      const std::vector<boost::json::object> lines = read_json_lines(folder / "second/metrics.jsonl");
      CHECK(lines.front().at("step") == 501);
      CHECK(lines.back().at("step") == 1000);
      CHECK(read_json(folder / "second/summary.json").at("steps") == 500);
    }
  }
}

TEST_CASE("states saved during a run are right, and a run can continue from one in its own folder", "[program]") {
  const Heat heat = {"line", "heat1d\ncells = 103", "[sharding]\nx = d\n"};
  const int ranks = GENERATE(1, 2);
  const TemporaryFolder folder;
  write_job(folder.path(), heat, ranks);
  const auto run = [&](const std::vector<std::string>& settings) {
    const Ended ended = run_program(folder.path(), with_settings({"heat.ini"}, settings));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
  };
  run({"job.output=run", "iterate.steps=10", "iterate.save_every=4"});
  CHECK(std::filesystem::exists(folder / "run/state-000004.safetensors"));
  CHECK(std::filesystem::exists(folder / "run/state-000008.safetensors"));
  CHECK_FALSE(std::filesystem::exists(folder / "run/state-000010.safetensors"));
  CHECK_FALSE(std::filesystem::exists(folder / "run/state-000008.safetensors.rank-0"));
  run({"job.output=eight", "iterate.steps=8"});
  CHECK(text_of_temperature(folder / "run/state-000008.safetensors") ==
        text_of_temperature(folder / "eight/state.safetensors"));

  run({"job.output=run", "iterate.steps=6", "iterate.save_every=5", "iterate.from=run/state-000004.safetensors"});
  CHECK(text_of_temperature(folder / "run/state.safetensors") ==
        text_of_temperature(folder / "run/state-000010.safetensors"));
  CHECK(std::filesystem::exists(folder / "run/state-000004.safetensors"));
  CHECK_FALSE(std::filesystem::exists(folder / "run/state-000008.safetensors"));
  std::filesystem::create_directory(folder / "links");
  std::filesystem::create_symlink(folder / "run/state-000004.safetensors", folder / "links/state-000004.safetensors");
  run({"job.output=run", "iterate.steps=6", "iterate.from=links/state-000004.safetensors"});
  CHECK(std::filesystem::exists(folder / "run/state-000004.safetensors"));
  run({"job.output=ten", "iterate.steps=10"});
  CHECK(text_of_temperature(folder / "run/state.safetensors") == text_of_temperature(folder / "ten/state.safetensors"));
}

TEST_CASE("a state of another model is refused before anything starts", "[program]") {
  const TemporaryFolder folder;
  write_job(folder.path(), {"line", "heat1d\ncells = 103", ""}, 1);
  const auto refused = [&](const std::vector<std::string>& settings) {
    const Ended ended =
        run_program(folder.path(), with_settings(with_settings({"heat.ini"}, {"job.output=run"}), settings));
    CHECK(ended.code == 2);
    CHECK_FALSE(std::filesystem::exists(folder / "run"));
    return ended.err;
  };
  const auto write = [&](const char* name, const std::vector<shardrun::checkpoint::Tensor>& tensors,
                         const shardrun::checkpoint::Metadata& metadata) {
    shardrun::checkpoint::write_safetensors(folder / name, tensors, metadata);
  };
  using shardrun::checkpoint::DType;
  const std::vector<float> values(103);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  write("short", {{{"temperature", DType::f32, {5}}, bytes.first(20)}}, {});
  write("other", {{{"heat", DType::f32, {103}}, bytes}}, {});
  write("more", {{{"temperature", DType::f32, {103}}, bytes}, {{"wind", DType::f32, {103}}, bytes}}, {});
  write("stepless", {{{"temperature", DType::f32, {103}}, bytes}}, {{"shardrun.step", "soon"}});

  using Catch::Matchers::Contains;
  CHECK_THAT(refused({"iterate.from=none"}), Contains("--set iterate.from: [iterate] from: ") && Contains("none"));
  CHECK_THAT(refused({"iterate.from=short"}), Contains("should be F32 [103], as [model] says, found F32 [5]"));
  CHECK_THAT(refused({"iterate.from=other"}), Contains("has no tensor 'temperature', which model heat1d iterates"));
  CHECK_THAT(refused({"iterate.from=more"}), Contains("has a tensor 'wind', which model heat1d does not have"));
  CHECK_THAT(refused({"iterate.from=stepless"}), Contains("step 'soon'"));
  CHECK_THAT(refused({"iterate.from=heat.ini"}), Contains("[iterate] from: "));
  write("late", {{{"temperature", DType::f32, {103}}, bytes}}, {{"shardrun.step", "1000000000000000"}});
  write("later", {{{"temperature", DType::f32, {103}}, bytes}}, {{"shardrun.step", "1000000000000001"}});
  CHECK_THAT(refused({"iterate.from=late", "iterate.steps=1"}),
             Contains("--set iterate.steps: [iterate] steps = 1, after the 1000000000000000 of [iterate] from: "));
  CHECK_THAT(refused({"iterate.from=later"}), Contains("[iterate] from: ") && Contains("step '1000000000000001'"));
  CHECK_THAT(refused({"iterate.steps=1000000000000001"}), Contains("[iterate] steps = 1000000000000001: "));
}

TEST_CASE("a state that is not finite is not blamed on a training", "[program]") {
  const TemporaryFolder folder;
  write_file(folder / "heat.ini",
             "[job]\ntask = iterate\n[model]\nname = heat1d\ncells = 5\n[iterate]\nsteps = 2\n"
             "[checkpoint]\nevery = 1\n");
  std::vector<float> values(5);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  shardrun::checkpoint::write_safetensors(
      folder / "bad.safetensors",
      std::vector<shardrun::checkpoint::Tensor>{
          {{"temperature", shardrun::checkpoint::DType::f32, {5}}, std::as_bytes(std::span(values))}},
      {});
  const Ended ended =
      run_program(folder.path(), {"checkpoint", "import", "bad.safetensors", "--job", "heat.ini", "-o", "made"});
  CHECK(ended.code == 2);
  CHECK(ended.err.find("tensor temperature has NaN at [3]") != std::string::npos);
  CHECK(ended.err.find("the run that made it went wrong, or the file was changed") != std::string::npos);
}

namespace {

template <typename Number>
std::string array_of(std::string_view descr, std::string_view shape, const std::vector<Number>& values) {
  return npy_file(
      "{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': " + std::string(shape) + ", }",
      {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Number)});
}

}  // namespace

TEST_CASE("a simulation starts from an array of any type, however it is split", "[program]") {
  const TemporaryFolder folder;
  const Heat heat = {"plane", "heat2d\nrows = 17\ncolumns = 13", "[sharding]\nx = d\ny = e\n[mesh]\nd = 1\ne = 3\n"};
  std::vector<double> wide;
  std::vector<float> values;
  std::vector<std::int16_t> whole;
  for (int i = 0; i < 17 * 13; ++i) {
    wide.push_back(std::sin(i) * 1e3 + 1e-9);
    values.push_back(static_cast<float>(wide.back()));
    whole.push_back(static_cast<std::int16_t>(i * 37 % 1000));
  }
  write_file(folder / "wide.npy", array_of("<f8", "(17, 13)", wide));
  std::filesystem::create_directory(folder / "whole");
  write_file(folder / "whole/temperature.npy", array_of("<i2", "(17, 13)", whole));
  const auto run = [&](int ranks, std::vector<std::string> settings) {
    write_job(folder.path(), heat, ranks);
    settings.insert(settings.end(), {"job.output=run", "iterate.steps=0"});
    const Ended ended = run_program(folder.path(), with_settings({"heat.ini"}, settings));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return temperature(folder / "run/state.safetensors");
  };
  for (const int ranks : {1, 3}) {
    CHECK(run(ranks, {"iterate.from=wide.npy"}) == values);
    CHECK(run(ranks, {"iterate.from=whole"}) == std::vector<float>(whole.begin(), whole.end()));
  }
}

TEST_CASE("a state of several fields is a folder of arrays", "[program]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "first");
  write_file(folder / "first/u.npy", array_of("<f4", "(2, 3)", std::vector<float>{1, 2, 3, 4, 5, 6}));
  write_file(folder / "first/before.npy", array_of("|b1", "(2, 3)", std::vector<char>{1, 0, 0, 0, 1, 1}));
  write_file(folder / "wave.ini",
             "[job]\ntask = iterate\noutput = run\n[plugins]\npath = " SHARDRUN_EXAMPLE_PROGRAMS
             "\n[model]\nname = wave\nrows = 2\ncolumns = 3\n[iterate]\nsteps = 0\nfrom = first\n");
  const auto run = [&](const std::vector<std::string>& settings) {
    return run_program(folder.path(), with_settings({"wave.ini"}, settings));
  };
  REQUIRE(run({}).code == 0);
  const shardrun::checkpoint::SafetensorsFile state(folder / "run/state.safetensors");
  const auto values_of = [&](const char* name) {
    std::vector<float> values(6);
    std::memcpy(values.data(), state.at(name).bytes.data(), 24);
    return values;
  };
  CHECK(values_of("u") == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(values_of("before") == std::vector<float>{1, 0, 0, 0, 1, 1});

  using Catch::Matchers::Contains;
  const auto refused = [&](const std::vector<std::string>& settings) {
    const Ended ended = run(settings);
    CHECK(ended.code == 2);
    CHECK_FALSE(std::filesystem::exists(folder / "other"));
    return ended.err;
  };
  const std::string into = "job.output=other";
  CHECK_THAT(refused({into, "iterate.from=first/u.npy"}),
             Contains("is one array, and model wave iterates u, before: name a folder with u.npy, before.npy"));
  CHECK_THAT(refused({into, "model.columns=4"}), Contains("u.npy' should be [2, 4], as [model] says of 'u', found "
                                                          "float32 [2, 3]"));
  write_file(folder / "first/v.npy", array_of("<f4", "(1,)", std::vector<float>{1}));
  CHECK_THAT(refused({into}), Contains("has an array 'v', which model wave does not have"));
  std::filesystem::remove(folder / "first/v.npy");
  write_file(folder / "first/u.npy", array_of("<f8", "(2, 3)", std::vector<double>{1, 2, 3, 4, 1e300, 6}));
  CHECK_THAT(refused({into}), Contains("wave.ini:12: [iterate] from: ") && Contains("row 1, column 1"));
  write_file(folder / "first/u.npy", "no array");
  CHECK_THAT(refused({into}), Contains("[iterate] from: cannot read array"));
  std::filesystem::remove(folder / "first/u.npy");
  CHECK_THAT(refused({into}), Contains("has no array 'u.npy', which model wave iterates"));
}

TEST_CASE("a run leaves the user's files in a folder that no run has held, and the other task's result", "[program]") {
  const TemporaryFolder folder;
  write_job(folder.path(), {"line", "heat1d\ncells = 103", ""}, 1);
  const auto run = [&](std::vector<std::string> settings) {
    return run_program(folder.path(), with_settings({"heat.ini"}, settings));
  };
  std::filesystem::create_directory(folder / "o");
  for (const char* name : {"sample.txt", "state-000100.safetensors", "weights.safetensors"}) {
    write_file(folder / "o" / name, "the user's");
    const Ended ended = run({"job.output=o", "iterate.steps=2"});
    CHECK(ended.code == 2);
    CHECK(ended.err.find("which no run has written") != std::string::npos);
    CHECK(read_file(folder / "o" / name) == "the user's");
    CHECK_FALSE(std::filesystem::exists(folder / "o/.lock"));
    std::filesystem::remove(folder / "o" / name);
  }
  REQUIRE(run({"job.output=o", "iterate.steps=2"}).code == 0);
  write_file(folder / "o/weights.safetensors", "of a training run");
  REQUIRE(run({"job.output=o", "iterate.steps=3"}).code == 0);
  CHECK(read_file(folder / "o/weights.safetensors") == "of a training run");
}

TEST_CASE("verify of an iterated job begins with the saved state too", "[program]") {
  const TemporaryFolder folder;
  write_job(folder.path(), {"line", "heat1d\ncells = 103", "[sharding]\nx = d\n"}, 2);
  REQUIRE(run_program(folder.path(), with_settings({"heat.ini"}, {"job.output=run", "iterate.steps=9"})).code == 0);
  const Ended ended = run_program(folder.path(), with_settings({"verify", "heat.ini"}, {"iterate.from=run"}));
  INFO(ended.out << ended.err);
  CHECK(ended.code == 0);
}

TEST_CASE("generate refuses an iterated run", "[program]") {
  const TemporaryFolder folder;
  write_file(folder / "job.ini",
             "[job]\ntask = iterate\noutput = run\n[model]\nname = heat1d\ncells = 8\n[iterate]\nsteps = 1\n");
  REQUIRE(run_program(folder.path(), {"job.ini"}).code == 0);

  const Ended ended = run_program(folder.path(), {"generate", "run"});

  CHECK(ended.code == 2);
  CHECK(ended.err ==
        "shardrun: 'run' is the folder of an iterated run ([job] task = iterate): it has a state, state.safetensors, "
        "and no weights; name the folder of a trained run\n");
}
