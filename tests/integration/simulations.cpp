// The simulations of examples/programs: over one rank they equal a plain loop, and over several ranks they
// equal one rank.

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "core/data/npy.h"
#include "tests/integration/example_programs.h"

using namespace shardrun::test;

namespace {

/// A simulation whose axes x and y are each split over this many ranks.
struct Split {
  std::size_t x = 1;
  std::size_t y = 1;
};
const std::vector<Split> lines = {{1, 1}, {2, 1}, {3, 1}, {4, 1}};
const std::vector<Split> planes = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 3}, {2, 2}};

/// The job file of such a simulation.
std::string write_job(const std::filesystem::path& folder, const std::string& model, const Split& split, int steps) {
  std::string text =
      "[job]\ntask = iterate\nstrategy = named\noutput = out\nranks = " + std::to_string(split.x * split.y) +
      "\n[mesh]\na = " + std::to_string(split.x) + "\nb = " + std::to_string(split.y) + "\n[sharding]\nx = a\n" +
      (split.y > 1 ? "y = b\n" : "") + "[model]\nname = " + model + "\n[iterate]\nsteps = " + std::to_string(steps) +
      "\n";
  write_file(folder / "job.ini", text);
  return "job.ini";
}

/// The float32 values of a .npy file.
std::vector<float> read_npy(const std::filesystem::path& path) {
  const shardrun::data::NpyArray array((shardrun::files::SteadyFile(path)));
  REQUIRE(array.type() == shardrun::data::NpyType::f32);
  std::vector<float> values(static_cast<std::size_t>(array.elements()));
  array.read(0, values);
  return values;
}

/// The states and outputs of a simulation after its last step.
States simulate(const std::filesystem::path& folder, const std::string& model, const Split& split, int steps) {
  run_job(folder, "run", write_job(folder, model, split, steps));
  States states = read_states(folder / "out/state.safetensors");
  if (std::filesystem::exists(folder / "out/outputs")) {
    for (const auto& entry : std::filesystem::directory_iterator(folder / "out/outputs")) {
      states[entry.path().filename().string()] = read_npy(entry.path());
    }
  }
  return states;
}

/// Bytes of edges that each rank sends in a step over a mesh axis, by the plan. Nothing else is sent but sums of
/// a few numbers.
std::vector<double> sent(const std::filesystem::path& folder, const std::string& job, const std::string& axis) {
  const boost::json::object plan = boost::json::parse(run_job(folder, "plan", job).out).as_object();
  std::vector<double> bytes;
  for (const boost::json::value& rank : plan.at("ranks").as_array()) {
    double total = 0;
    for (const auto& [collective, count] : rank.at("sent_bytes").at(axis).as_object()) {
      const bool edges = collective == "halo";
      CHECK((edges || count.to_number<double>() <= 8));
      total += edges ? count.to_number<double>() : 0;
    }
    bytes.insert(bytes.end(), rank.at("members").as_array().size(), total);
  }
  return bytes;
}

}  // namespace

TEST_CASE("big_sin is the sine of each element, and its gradient the cosine", "[programs]") {
  const TemporaryFolder folder;
  const States states = simulate(folder.path(), "big_sin", {1, 1}, 1);
  REQUIRE(states.at("data").size() == 1600);
  for (std::size_t i = 0; i < 1600; ++i) {
    const double x = static_cast<double>(i + 1);
    REQUIRE(states.at("data")[i] == Approx(std::sin(x)).margin(1e-6));
    REQUIRE(states.at("gradient.npy")[i] == Approx(std::cos(x)).margin(1e-6));
  }
  for (const Split& split : planes) {
    CHECK(simulate(folder.path(), "big_sin", split, 1) == states);
  }
}

TEST_CASE("an iterated model takes batches of data, on one rank and with the batch split", "[programs]") {
  const TemporaryFolder folder;
  const std::vector<float> x = read_npy(SHARDRUN_EXAMPLE_JOBS "/data/x.npy");
  const std::vector<float> y = read_npy(SHARDRUN_EXAMPLE_JOBS "/data/y.npy");
  const auto weights = [&](std::vector<std::string> settings) {
    settings.emplace_back("job.output=out");
    run_job(folder.path(), "run", example("lms"), settings);
    return read_states(folder / "out/state.safetensors").at("weights");
  };
  // With all samples in each batch their order does not matter.
  std::vector<double> expected(8);
  for (int step = 0; step < 5; ++step) {
    std::vector<double> moved = expected;
    for (std::size_t sample = 0; sample < 256; ++sample) {
      double error = y[sample];
      for (std::size_t f = 0; f < 8; ++f) {
        error -= x[sample * 8 + f] * expected[f];
      }
      for (std::size_t f = 0; f < 8; ++f) {
        moved[f] += 0.05 / 256 * x[sample * 8 + f] * error;
      }
    }
    expected = moved;
  }
  for (const char* ranks : {"1", "2", "3"}) {
    const std::string mesh = std::string("mesh.data=") + ranks;
    const std::vector<float> found =
        weights({std::string("job.ranks=") + ranks, mesh, "data.batch=256", "iterate.steps=5"});
    for (std::size_t f = 0; f < 8; ++f) {
      CHECK(found[f] == Approx(expected[f]).epsilon(1e-5));
    }
  }
  // Each step has the next samples. A run that goes on from another continues with the samples that follow.
  const std::vector<float> whole = weights({"iterate.steps=20", "iterate.save_every=8"});
  std::filesystem::copy(folder / "out/state-000008.safetensors", folder / "eight.safetensors");
  CHECK(weights({"iterate.steps=12", "iterate.from=" + (folder / "eight.safetensors").string()}) == whole);
  CHECK(weights({"iterate.steps=12"}) != whole);
  // From a checkpoint a run goes on with the samples that follow.
  weights({"checkpoint.every=4", "iterate.steps=8"});
  const std::string manifest = read_file(folder / "out/checkpoints/step-000008/manifest.json");
  CHECK(manifest.find("\"samples\":256") != std::string::npos);
  run_program(folder.path(), with_settings({"run", example("lms"), "--resume"},
                                           {"checkpoint.every=4", "iterate.steps=20", "job.output=out", "job.threads=1",
                                            "plugins.path=" SHARDRUN_EXAMPLE_PROGRAMS}));
  CHECK(read_states(folder / "out/state.safetensors").at("weights") == whole);
  run_job(folder.path(), "verify", example("lms"));
  const Ended check =
      run_program(folder.path(), {"plugins", "check", SHARDRUN_EXAMPLE_PROGRAMS "/shardrun_model_lms.so"});
  INFO(check.out);
  CHECK(check.code == 0);
  CHECK(check.out.find("  ok     the same results with every axis split") != std::string::npos);
}

TEST_CASE("data that an iterated model cannot take, or settings without effect, are refused", "[programs]") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& name, std::vector<std::string> settings) {
    settings.emplace_back("plugins.path=" SHARDRUN_EXAMPLE_PROGRAMS);
    const Ended ended = run_program(folder.path(), with_settings({example(name)}, settings));
    CHECK(ended.code == 2);
    return ended.err;
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(refused("lms", {"data.split=0.5"}), Contains("[data] split has no effect with [job] task = iterate"));
  CHECK_THAT(refused("life", {"data.arrays=" SHARDRUN_EXAMPLE_JOBS "/data/x.npy," SHARDRUN_EXAMPLE_JOBS "/data/y.npy"}),
             Contains("model life does not take arrays"));
  CHECK_THAT(refused("life", {"data.batch=4"}), Contains("[data] names no data"));
  write_file(folder / "none.ini", "[job]\ntask = iterate\n[plugins]\npath = " SHARDRUN_EXAMPLE_PROGRAMS
                                  "\n[model]\nname = lms\n[iterate]\nsteps = 2\n");
  const Ended without = run_program(folder.path(), {"none.ini"});
  CHECK(without.code == 2);
  CHECK_THAT(without.err, Contains("[data] is missing"));
}

TEST_CASE("102 points follow the serial loop on one to four ranks, and only edges are sent", "[programs]") {
  const TemporaryFolder folder;
  std::vector<float> u = simulate(folder.path(), "heat102", {}, 0).at("data");
  REQUIRE(u.size() == 102);
  CHECK(*std::max_element(u.begin(), u.end()) > 0.9F);
  for (int step = 0; step < 100; ++step) {
    std::vector<float> next = u;
    for (std::size_t i = 1; i < 101; ++i) {
      next[i] = 0.5F * u[i] + 0.25F * u[i - 1] + 0.25F * u[i + 1];
    }
    u = next;
  }
  for (const Split& split : lines) {
    INFO(split.x);
    CHECK(simulate(folder.path(), "heat102", split, 100).at("data") == u);
  }
  CHECK(sent(folder.path(), "job.ini", "a") == std::vector<double>{8, 8, 8, 8});
}

TEST_CASE("the Game of Life follows its rules on one to four ranks, and only edges are sent", "[programs]") {
  const TemporaryFolder folder;
  const std::string odd = "life\nrows = 37\ncolumns = 23";
  std::vector<float> cells = simulate(folder.path(), odd, {}, 0).at("cells");
  const auto alive = std::count(cells.begin(), cells.end(), 1.0F);
  CHECK((alive > 150 && alive < 370));
  for (int step = 0; step < 100; ++step) {
    std::vector<float> next(cells.size());
    for (std::size_t i = 0; i < 37; ++i) {
      for (std::size_t j = 0; j < 23; ++j) {
        float neighbours = -cells[i * 23 + j];
        for (const std::size_t r : {i + 36, i, i + 1}) {
          for (const std::size_t c : {j + 22, j, j + 1}) {
            neighbours += cells[(r % 37) * 23 + c % 23];
          }
        }
        next[i * 23 + j] = neighbours == 3 || (neighbours == 2 && cells[i * 23 + j] == 1) ? 1.0F : 0.0F;
      }
    }
    cells = next;
  }
  CHECK(std::count(cells.begin(), cells.end(), 1.0F) > 0);
  for (const Split& split : planes) {
    INFO(split.x << " by " << split.y);
    const States found = simulate(folder.path(), odd, split, 100);
    CHECK(found.at("cells") == cells);
    const auto left = static_cast<float>(std::count(cells.begin(), cells.end(), 1.0F));
    CHECK(found.at("alive.npy") == std::vector<float>{left});
  }
  // Each rank sends a row of 23 cells to either side.
  CHECK(sent(folder.path(), write_job(folder.path(), odd, {3, 1}, 1), "a") == std::vector<double>{184, 184, 184});
}

TEST_CASE("a model's own op that reads neighbours follows the serial loop, and only edges are sent", "[programs]") {
  const TemporaryFolder folder;
  const std::string odd = "diffusion\nrows = 37\ncolumns = 23";
  std::vector<float> u = simulate(folder.path(), odd, {}, 0).at("u");
  for (int step = 0; step < 20; ++step) {
    std::vector<float> next(u.size());
    const auto at = [&](int y, int x) {
      return y < 0 || y >= 37 || x < 0 || x >= 23 ? 0.0F : u[static_cast<std::size_t>(y * 23 + x)];
    };
    for (int y = 0; y < 37; ++y) {
      for (int x = 0; x < 23; ++x) {
        next[static_cast<std::size_t>(y * 23 + x)] =
            at(y, x) + 0.2F * (at(y - 1, x) + at(y + 1, x) + at(y, x - 1) + at(y, x + 1) - 4 * at(y, x));
      }
    }
    u = next;
  }
  const std::vector<float> alone = simulate(folder.path(), odd, {}, 20).at("u");
  REQUIRE(alone.size() == u.size());
  for (std::size_t i = 0; i < u.size(); ++i) {
    REQUIRE(alone[i] == Approx(u[i]).margin(1e-6));
  }
  for (const Split& split : planes) {
    INFO(split.x << " by " << split.y);
    CHECK(simulate(folder.path(), odd, split, 20).at("u") == alone);
  }
  const auto edges = [&](const Split& split, const char* axis) {
    std::vector<double> bytes = sent(folder.path(), write_job(folder.path(), odd, split, 1), axis);
    std::ranges::sort(bytes);
    return bytes;
  };
  CHECK(edges({1, 3}, "b") == std::vector<double>{92, 92, 184});  // a row of 23 to each neighbour
  // Rows of 12 and 11, then columns of 19 and 18 with the corner that came with a row.
  CHECK(edges({2, 2}, "b") == std::vector<double>{44, 44, 48, 48});
  CHECK(edges({2, 2}, "a") == std::vector<double>{76, 76, 80, 80});
}

TEST_CASE("outputs are saved with the fields, and an earlier run's outputs are removed", "[programs]") {
  const TemporaryFolder folder;
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "out/outputs")) {
      found.insert(entry.path().filename().string());
    }
    return found;
  };
  run_job(folder.path(), "run", write_job(folder.path(), "life", {2, 1}, 6), {"iterate.save_every=2"});
  CHECK(names() == std::set<std::string>{"alive-000002.npy", "alive-000004.npy", "alive-000006.npy", "alive.npy"});
  CHECK(read_npy(folder / "out/outputs/alive-000006.npy") == read_npy(folder / "out/outputs/alive.npy"));
  CHECK(read_npy(folder / "out/outputs/alive-000002.npy") != read_npy(folder / "out/outputs/alive.npy"));
  simulate(folder.path(), "big_sin", {1, 2}, 1);
  CHECK(names() == std::set<std::string>{"gradient.npy"});
  simulate(folder.path(), "wave", {}, 1);
  CHECK_FALSE(std::filesystem::exists(folder / "out/outputs"));
}

TEST_CASE("a wave on a rectangle is the same on one to four ranks", "[programs]") {
  const TemporaryFolder folder;
  const States alone = simulate(folder.path(), "wave", {}, 50);
  for (const Split& split : planes) {
    CHECK(simulate(folder.path(), "wave", split, 50) == alone);
  }
}

TEST_CASE("the simulation examples pass verify with the job files they come with", "[programs]") {
  const TemporaryFolder folder;
  for (const char* name : {"big_sin", "diffusion", "heat102", "life", "wave"}) {
    run_job(folder.path(), "verify", example(name));
  }
}

TEST_CASE("the example job files run unchanged, or say that they are only for plan", "[programs]") {
  std::size_t ran = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(SHARDRUN_EXAMPLE_JOBS)) {
    const std::filesystem::path& file = entry.path();
    const std::string folder_name = file.parent_path().filename().string();
    // Jobs in the folders `plugins` and `engines` are run by the tests in the folders where these are built.
    if (file.extension() != ".ini" || folder_name == "plugins" || folder_name == "engines") {
      continue;
    }
    const std::string text = read_file(file);
    const bool is_for_plan = text.find("can be planned and not trained") != std::string::npos;
    const bool iterates = text.find("task = iterate") != std::string::npos;
    const TemporaryFolder folder;
    if (is_for_plan) {
      continue;
    }
    INFO(file.native());
    std::vector<std::string> settings = {"job.output=out", iterates ? "iterate.steps=1" : "train.steps=1"};
    if (text.find("warmup = ") != std::string::npos) {
      settings.emplace_back("train.warmup=0");
    }
    run_job(folder.path(), "run", file.string(), settings);
    CHECK(std::filesystem::exists(folder / "out/summary.json"));
    ++ran;
  }
  CHECK(ran >= 15);
}
