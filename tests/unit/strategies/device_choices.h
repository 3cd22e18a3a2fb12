#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/unit/strategies/agreement.h"

/// The cases of strategies that tests run on devices other than the cpu.
namespace shardrun::test {

inline Choice of(const std::string& strategy, std::vector<plan::MeshAxis> mesh, OptionValues options = {},
                 const std::string& schedule = "") {
  Choice choice{strategy, std::move(mesh), std::move(options)};
  if (!schedule.empty()) {
    add_schedule(choice.options, schedule);
  }
  return choice;
}

/// One or two choices for each strategy.
inline std::vector<Choice> choices_of_devices() {
  std::vector<Choice> all = {
      of("single", ranks(1)),
      of("dp", ranks(3)),
      of("zero1", ranks(3)),
      of("zero2", ranks(2), {{"bucket_mb", 0.002}}),
      of("zero3", ranks(3)),
      of("zero3", ranks(2), {{"unit", "tensor"}}),
      of("hsdp", {{"replica", 2}, {"shard", 2}}),
      of("tp", ranks(3)),
      of("tp", ranks(2), {{"sequence", true}}),
      of("topk", ranks(3), {{"ratio", 1.0}}),
      of("3d", {{"data", 2}, {"model", 2}, {"pipe", 2}}, {{"zero", std::int64_t{2}}, {"sequence", true}}, "1f1b"),
      of("3d", {{"data", 2}, {"pipe", 2}}, {{"zero", std::int64_t{3}}}, "zb-h1")};
  for (const std::string& schedule : all_schedules()) {
    all.push_back(of("pp", ranks(2), {}, schedule));
  }
  return all;
}

}  // namespace shardrun::test
