#pragma once

#include <boost/json.hpp>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/npy.h"

namespace shardrun::test {

inline constexpr int samples = 40;
inline constexpr int features_of_sample = 6;

/// Random values, the same on every machine.
inline std::string numbers(std::size_t count) {
  std::minstd_rand random(1);
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(random() % 1000) / 500.0F - 1.0F;
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

inline std::string labels() {
  std::string bytes;
  for (int i = 0; i < samples; ++i) {
    const int label = i * i % 3;
    bytes.append(reinterpret_cast<const char*>(&label), sizeof label);
  }
  return bytes;
}

inline std::string array_file(const std::string& descr, const std::string& shape, const std::string& bytes) {
  return npy_file("{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }", bytes);
}

/// A folder with arrays and two jobs that train the same network: `model.ini` and `engine.ini`, which names the model.
class EngineFolder {
 public:
  EngineFolder() {
    write_file(path() / "x.npy", array_file("<f4", "(40, 6)", numbers(samples * features_of_sample)));
    write_file(path() / "y.npy", array_file("<f4", "(40, 2)", numbers(samples * 2)));
    write_file(path() / "labels.npy", array_file("<i4", "(40,)", labels()));
    const std::string rest = R"(
[data]
arrays = x.npy, y.npy
batch = 7
[train]
steps = 5
learning_rate = 0.01
weight_decay = 0.1
clip = 0.5
eval_every = 2
)";
    write_file(path() / "model.ini", "[job]\noutput = model\n[model]\nname = mlp\nhidden = 5\n" + rest);
    write_file(path() / "engine.ini",
               "[job]\nengine = data_parallel\noutput = engine\n[model]\nname = mlp\nhidden = 5\n[plugins]\npath = " +
                   std::string(SHARDRUN_EXAMPLE_ENGINES) + "\n[engine]\nhidden = 5\n" + rest);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

  /// `job`: "model" or "engine", which is also the name of its output folder.
  [[nodiscard]] Ended run(const std::string& job, const std::vector<std::string>& settings = {}) const {
    return run_program(path(), with_settings({job + ".ini"}, settings));
  }

  /// The losses, validation losses and norms of a run.
  [[nodiscard]] std::vector<double> results(const std::string& job) const {
    std::vector<double> found;
    for (const boost::json::object& line : read_json_lines(path() / job / "metrics.jsonl")) {
      for (const char* const key : {"loss", "val_loss", "grad_norm"}) {
        if (line.contains(key)) {
          found.push_back(line.at(key).to_number<double>());
        }
      }
    }
    return found;
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace shardrun::test
