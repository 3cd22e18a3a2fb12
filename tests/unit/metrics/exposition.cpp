#include "core/metrics/exposition.h"

#include <array>
#include <cmath>
#include <regex>
#include <set>

#include "core/metrics/jsonl.h"
#include "tests/support/catch.h"
#include "tests/support/prometheus_text.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::metrics;
using namespace shardrun::test;

namespace {

std::string line_of(const StepRecord& record) {
  std::array<JsonField, training_fields.size()> storage;
  std::string line;
  append_line(line, fields_of(record, storage));
  return line;
}

}  // namespace

TEST_CASE("the numbers of a run are told in Prometheus' text format", "[metrics]") {
  Exposition numbers("1.2.3", "a \"job\"\\\n", "/runs/a", "train", 2, 100);
  std::map<std::string, double> samples = prometheus_samples(numbers.text());
  CHECK(samples.at("shardrun_build_info{version=\"1.2.3\"}") == 1);
  CHECK(samples.at("shardrun_run_info{run=\"a \\\"job\\\"\\\\\\n\",output=\"/runs/a\",task=\"train\"}") == 1);
  CHECK(samples.at("shardrun_last_step") == 100);
  CHECK_FALSE(samples.contains("shardrun_step"));

  numbers.take(0, line_of({.step = 3, .loss = 0.1, .val_loss = 2.5, .grad_norm = 1e-300, .lr = 1e-4, .step_s = 0.5}));
  numbers.take(0, line_of({.step = 4, .loss = std::nan(""), .tokens_per_s = 1e22}));
  numbers.take(0, "{\"planned_bytes\":1000}\n");
  numbers.take(1, "{\"planned_bytes\":2000}\n");
  numbers.take(1, line_of({.step = 7}));  // steps are the first rank's
  samples = prometheus_samples(numbers.text());
  CHECK(samples.at("shardrun_step") == 4);
  CHECK(std::isnan(samples.at("shardrun_loss")));
  CHECK(samples.at("shardrun_validation_loss") == 2.5);  // until the next
  CHECK(samples.at("shardrun_tokens_per_second") == 1e22);
  CHECK(samples.at("shardrun_memory_planned_bytes{rank=\"0\"}") == 1000);
  CHECK(samples.at("shardrun_memory_planned_bytes{rank=\"1\"}") == 2000);
}

TEST_CASE("ranks that hold up the others are told as long as they do", "[metrics]") {
  Exposition numbers("1", "job", "/run", "train", 4, 100);
  numbers.take({{.rank = 3, .cause = SlowRank::Cause::input, .behind_s = 0.25}});
  CHECK(prometheus_samples(numbers.text()).at("shardrun_slow_rank{rank=\"3\",cause=\"input\"}") == 0.25);
  numbers.take({{.rank = 1, .peer = 3, .cause = SlowRank::Cause::link, .behind_s = 0.5}});
  CHECK(prometheus_samples(numbers.text()).at("shardrun_slow_rank{rank=\"1\",peer=\"3\",cause=\"link\"}") == 0.5);
  numbers.take(std::vector<SlowRank>());
  CHECK_FALSE(numbers.text().find("slow_rank") != std::string::npos);
}

TEST_CASE("counts go on when the ranks are started again", "[metrics]") {
  Exposition numbers("1", "job", "/run", "train", 2, 100);
  numbers.take(0, "{\"checkpoints_saved\":2,\"checkpoints_failed\":1}\n");
  numbers.take(1, "{\"peak_bytes\":5}\n");
  numbers.begin_again(1);
  std::map<std::string, double> samples = prometheus_samples(numbers.text());
  CHECK(samples.at("shardrun_restarts_total") == 1);
  CHECK(samples.at("shardrun_ranks") == 1);
  CHECK(samples.at("shardrun_checkpoints_saved_total") == 2);
  CHECK_FALSE(samples.contains("shardrun_memory_peak_bytes{rank=\"1\"}"));

  numbers.take(0, "{\"checkpoints_saved\":1,\"checkpoints_failed\":0}\n");
  numbers.begin_again(1);
  numbers.take(0, "{\"checkpoints_saved\":1,\"checkpoints_failed\":0}\n");
  samples = prometheus_samples(numbers.text());
  CHECK(samples.at("shardrun_restarts_total") == 2);
  CHECK(samples.at("shardrun_checkpoints_saved_total") == 4);
  CHECK(samples.at("shardrun_checkpoints_failed_total") == 1);
}

TEST_CASE("the dashboard shows metrics that are told, and all of them are in the documentation", "[metrics]") {
  Exposition numbers("1", "job", "/run", "train", 1, 100);
  const std::size_t before = prometheus_samples(numbers.text()).size();
  numbers.take(0, line_of({.step = 1, .val_loss = 1, .flops_per_s = 1, .utilisation = 1}));
  CHECK(prometheus_samples(numbers.text()).size() == before + training_fields.size());
  numbers.take(0,
               "{\"planned_bytes\":1,\"peak_bytes\":1,\"checkpoints_saved\":1,\"checkpoints_failed\":1,"
               "\"checkpoint_step\":1}\n");
  numbers.take({SlowRank{}});
  std::set<std::string> told;
  for (const auto& [sample, value] : prometheus_samples(numbers.text())) {
    told.insert(sample.substr(0, sample.find('{')));
  }
  const auto named_in = [](const std::string& file) {
    const std::string text = read_file(std::filesystem::path(SHARDRUN_DOCS) / file);
    static const std::regex name("shardrun_[a-z_]+");
    std::set<std::string> names;
    for (std::sregex_iterator found(text.begin(), text.end(), name), end; found != end; ++found) {
      names.insert(found->str());
    }
    return names;
  };
  const std::set<std::string> shown = named_in("grafana.json");
  CHECK(shown.size() > 10);
  for (const std::string& name : shown) {
    CAPTURE(name);
    CHECK(told.contains(name));
  }
  CHECK(named_in("metrics.md") == told);
}
