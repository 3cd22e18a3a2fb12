#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/partition/partition.h"
#include "plugins/loader/strategy.h"
#include "tests/support/verify_case.h"

namespace shardrun::test {

/// A strategy with its options, and the mesh of the job.
struct Choice {
  std::string strategy;
  std::vector<plan::MeshAxis> mesh;  ///< one axis without a name: the job has ranks, and no [mesh]
  OptionValues options = {};
  std::vector<std::int64_t> order = {};  ///< the rank at each place of the mesh
};

/// `ranks` without a [mesh].
[[nodiscard]] inline std::vector<plan::MeshAxis> ranks(std::uint32_t number) { return {{"", number}}; }

/// A pipeline's schedule by its name; "interleaved 3" has three chunks a stage.
void add_schedule(OptionValues& options, const std::string& schedule);
[[nodiscard]] const std::vector<std::string>& all_schedules();

[[nodiscard]] std::string to_string(const Choice& choice);

/// The answer of the built plugin for a model.
struct Answer {
  plan::Plan plan;
  std::shared_ptr<const plugins::Hooks> hooks;  ///< null: the plan has none
};
[[nodiscard]] Answer answer_by(const ModelCase& model, const Choice& choice);
[[nodiscard]] partition::Partition split_by(const ModelCase& model, const Choice& choice);
[[nodiscard]] partition::Programs programs_by(const ModelCase& model, const partition::Partition& partition,
                                              std::int64_t rank);

}  // namespace shardrun::test
