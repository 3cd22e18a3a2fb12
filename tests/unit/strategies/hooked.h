#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/device/elements.h"
#include "core/partition/partition.h"
#include "core/runtime/interpreter.h"
#include "plugins/loader/hooks.h"
#include "tests/support/errors.h"
#include "tests/unit/strategies/agreement.h"

namespace shardrun::test {

inline Choice hooked(std::vector<plan::MeshAxis> mesh, std::string mode, OptionValues options = {}) {
  options.set("mode", std::move(mode));
  return {"hooked", std::move(mesh), std::move(options)};
}

inline std::vector<graph::StateId> states_of(const Split& split, graph::StateKind kind) {
  std::vector<graph::StateId> found;
  for (const graph::StateId s : split.checked.model.graph.states.ids()) {
    if (split.checked.model.graph.states[s].kind == kind) {
      found.push_back(s);
    }
  }
  return found;
}

inline std::vector<float> values_of(runtime::Interpreter& ranks, std::size_t rank, graph::StateId state) {
  const device::TensorView view = ranks.rank(rank).state(state);
  std::vector<double> values(static_cast<std::size_t>(view.elements()));
  device::read_elements(view, 0, values);
  return {values.begin(), values.end()};
}

inline std::string refusal(const VerifyCase& checked, const Choice& choice) {
  return error_of([&] {
    const Split split(checked, choice);
    (void)partition::programs_of(split.checked.model.graph, split.partition,
                                 {.device = device::Device::find("cpu"),
                                  .plan_hook = [&](const plan::HookGroup& group) { return split.hooks->ask(group); }});
  });
}

}  // namespace shardrun::test
