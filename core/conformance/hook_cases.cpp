#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "core/base/error.h"
#include "core/conformance/strategy_jobs.h"
#include "core/conformance/strategy_member.h"
#include "plugins/loader/hooks.h"

namespace shardrun::conformance {
namespace {

using plan::Hook;
using plan::HookPlan;
using plan::HookStep;
using plugins::Hooks;
using plugins::HookTables;

/// Sizes of groups in elements: one, fewer than members, odd, even.
constexpr std::uint64_t group_sizes[] = {1, 2, 7, 64, 1001};
constexpr std::int64_t rounds = 3;

/// Elements of 4 bytes between guard bytes.
class Guarded {
 public:
  explicit Guarded(std::uint64_t elements) : bytes_(elements * width + 2 * margin, untouched) {}

  [[nodiscard]] void* data() noexcept { return bytes_.data() + margin; }
  [[nodiscard]] std::uint64_t elements() const noexcept { return (bytes_.size() - 2 * margin) / width; }
  [[nodiscard]] float* floats() noexcept { return static_cast<float*>(data()); }

  [[nodiscard]] bool is_kept() const noexcept {
    const auto same = [](unsigned char byte) { return byte == untouched; };
    return std::all_of(bytes_.begin(), bytes_.begin() + margin, same) &&
           std::all_of(bytes_.end() - margin, bytes_.end(), same);
  }

 private:
  static constexpr std::size_t width = 4;
  static constexpr std::ptrdiff_t margin = 256;
  static constexpr unsigned char untouched = 0xA5;

  std::vector<unsigned char> bytes_;
};

/// The buffers of each member of a group.
using GroupMemory = std::vector<std::vector<Guarded>>;

struct GroupCase {
  const Hook& hook;
  std::uint64_t elements;
  std::uint32_t members;
  bool varies;  ///< whether its tensors vary over the hook's mesh axis

  /// The group for which the hook is planned. It has two tensors if there are enough elements.
  [[nodiscard]] plan::HookGroup asked() const {
    const auto all = static_cast<std::int64_t>(elements);
    plan::HookGroup made{.kind = hook.kind,
                         .members = members,
                         .states = static_cast<std::uint32_t>(hook.states.size()),
                         .tensors = {{hook.tensors.front(), {all}}}};
    if (all > 1) {
      made.tensors = {{hook.tensors.front(), {1, all / 2}}, {hook.tensors.back(), {all - all / 2}}};
    }
    return made;
  }
};

void copy(Guarded& from, std::uint64_t first, Guarded& to, std::uint64_t at, std::uint64_t count) {
  std::memcpy(to.floats() + at, from.floats() + first, count * sizeof(float));
}

void reduce(GroupMemory& memory, const HookStep& step) {
  std::vector<float> sum(memory.front()[step.send].elements(), 0);
  for (std::vector<Guarded>& member : memory) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += member[step.send].floats()[i];
    }
  }
  const std::size_t received = memory.front()[step.receive].elements();
  for (std::size_t m = 0; m < memory.size(); ++m) {
    const std::size_t first = step.kind == HookStep::Kind::reduce_scatter ? m * received : 0;
    std::copy_n(sum.begin() + static_cast<std::ptrdiff_t>(first), received, memory[m][step.receive].floats());
  }
}

void carry_out(GroupMemory& memory, const HookStep& step) {
  if (step.kind == HookStep::Kind::all_reduce || step.kind == HookStep::Kind::reduce_scatter) {
    reduce(memory, step);
    return;
  }
  const bool gathers = step.kind == HookStep::Kind::all_gather;
  const std::uint64_t block = memory.front()[step.receive].elements() / memory.size();
  for (std::size_t from = 0; from < memory.size(); ++from) {
    for (std::size_t to = 0; to < memory.size(); ++to) {
      copy(memory[from][step.send], gathers ? 0 : to * block, memory[to][step.receive], from * block, block);
    }
  }
}

/// The memory of all members before the first round: zeros. fill_tensors() then sets hook states that copy tensors.
GroupMemory first_memory(const GroupCase& group) {
  GroupMemory memory(group.members);
  for (std::vector<Guarded>& member : memory) {
    for (std::size_t b = 0; b <= group.hook.states.size(); ++b) {
      member.emplace_back(group.elements);
      std::fill_n(member.back().floats(), group.elements, 0.0F);
    }
  }
  return memory;
}

/// Fills the tensors with values that differ between rounds. Gradients, and parameters that vary, differ between
/// members, too. In round 0, hook states that copy tensors get these values.
void fill_tensors(const GroupCase& group, GroupMemory& memory, std::int64_t round) {
  const bool differ = group.hook.kind == plan::HookKind::sync_gradients || group.varies;
  for (std::size_t m = 0; m < memory.size(); ++m) {
    for (std::uint64_t i = 0; i < group.elements; ++i) {
      const auto number = (i * 37 + (differ ? m : 0) * 101 + static_cast<std::uint64_t>(round) * 13) % 64;
      memory[m][0].floats()[i] = static_cast<float>(number) / 16 - 2;
    }
    for (std::size_t s = 0; s < group.hook.states.size() && round == 0; ++s) {
      if (group.hook.states[s].copies_tensor) {
        copy(memory[m][0], 0, memory[m][s + 1], 0, group.elements);
      }
    }
  }
}

/// Adds the hook's own buffers. Their initial content is undefined, so it differs on each call.
void add_buffers(const HookPlan& plan, GroupMemory& memory, unsigned char& anything) {
  for (std::vector<Guarded>& member : memory) {
    for (const plan::HookBuffer& buffer : plan.buffers) {
      member.emplace_back(buffer.elements);
      std::memset(member.back().data(), anything, buffer.elements * sizeof(float));
    }
    anything = static_cast<unsigned char>(anything * 5 + 17);
  }
}

void call(const Hooks& hooks, const GroupCase& group, const HookTables& tables, std::vector<Guarded>& buffers,
          std::uint32_t number, std::uint32_t member, std::int64_t step) {
  std::vector<void*> addresses;
  std::vector<std::uint64_t> elements;
  for (Guarded& buffer : buffers) {
    addresses.push_back(buffer.data());
    elements.push_back(buffer.elements());
  }
  sr_hook_call made{};
  made.call = number;
  made.member = member;
  made.buffer_count = static_cast<std::uint32_t>(buffers.size());
  made.buffers = addresses.data();
  made.elements = elements.data();
  made.step = step;
  made.samples = group.members;
  made.own_samples = group.members == 1            ? 1
                     : member == 0                 ? 2
                     : member + 1 == group.members ? 0
                                                   : 1;  // member 0 has two samples, so the last member has none
  hooks.run(tables, made);
  if (!std::all_of(buffers.begin(), buffers.end(), [](const Guarded& buffer) { return buffer.is_kept(); })) {
    throw Failure(fmt::format("hook {}, call {}: it wrote outside of its buffers", to_string(group.hook.kind), number));
  }
}

/// Executes rounds, and returns the final content of all tensors and states. `of`: returns the hooks instance for a
/// member. `anything`: initial content of the hook's own buffers.
std::vector<float> do_rounds(const GroupCase& group, const HookTables& tables, const HookPlan& plan,
                             const std::function<const Hooks&(std::size_t)>& of, unsigned char anything) {
  GroupMemory memory = first_memory(group);
  for (std::int64_t round = 0; round < rounds; ++round) {
    fill_tensors(group, memory, round);
    add_buffers(plan, memory, anything);
    for (const HookStep& step : plan.steps) {
      if (step.kind != HookStep::Kind::call) {
        carry_out(memory, step);
        continue;
      }
      for (std::uint32_t m = 0; m < group.members; ++m) {
        call(of(m), group, tables, memory[m], step.call, m, round);
      }
    }
    for (std::size_t m = 1; m < memory.size() && !group.varies; ++m) {
      if (std::memcmp(memory[m][0].data(), memory[0][0].data(), group.elements * sizeof(float)) != 0) {
        throw Failure(
            fmt::format("hook {} leaves members 0 and {} with other tensors, of {} elements, and the plan "
                        "does not let them vary",
                        to_string(group.hook.kind), m, group.elements));
      }
    }
    for (std::vector<Guarded>& member : memory) {
      member.erase(member.begin() + static_cast<std::ptrdiff_t>(1 + group.hook.states.size()), member.end());
    }
  }
  std::vector<float> left;
  for (std::vector<Guarded>& member : memory) {
    for (Guarded& buffer : member) {
      left.insert(left.end(), buffer.floats(), buffer.floats() + group.elements);
    }
  }
  return left;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check_group(StrategyMember& member, const StrategyJob& job, const plan::Plan& draft, const GroupCase& group) {
  const auto open = [&] { return std::make_unique<const Hooks>(member.open_another(), job.request, draft); };
  const auto one = open();
  const plan::HookGroup asked = group.asked();
  const HookPlan plan = one->ask(asked);
  if (plan != one->ask(asked) || plan != open()->ask(asked)) {
    throw Failure(fmt::format("hook {}, asked again for {} elements, plans otherwise", to_string(group.hook.kind),
                              group.elements));
  }
  const HookTables tables(asked);
  const std::vector<float> left = do_rounds(
      group, tables, plan, [&](std::size_t) -> const Hooks& { return *one; }, 0xA5);
  std::map<std::size_t, std::unique_ptr<const Hooks>> own;
  const auto own_of = [&](std::size_t m) -> const Hooks& {
    std::unique_ptr<const Hooks>& mine = own[m];
    mine = mine ? std::move(mine) : open();
    return *mine;
  };
  if (!same_bits(left, do_rounds(group, tables, plan, own_of, 0x3C))) {
    throw Failure(
        fmt::format("hook {} leaves something else where each member has an instance of its own, and buffers "
                    "begin as something else: it keeps what belongs into its states, or reads what it has "
                    "not written",
                    to_string(group.hook.kind)));
  }
}

bool varies(const plan::Plan& draft, const Hook& hook) {
  return std::any_of(draft.varying.begin(), draft.varying.end(), [&](const plan::VaryingTensor& each) {
    return each.mesh_axis == hook.mesh_axis && each.tensor == hook.tensors.front();
  });
}

/// Checks the hook plans of all jobs whose plans have hooks, and the results for groups of all sizes.
void hooks_of_plans(StrategyMember& member) {
  for (const std::string& program : program_names()) {
    for (const std::uint32_t ranks : rank_counts()) {
      for (const StrategyJob& job : jobs_of(program, ranks)) {
        const Answer answer = ask(member.strategy(), job.request);
        for (const Hook& hook : answer.plan ? answer.plan->hooks : std::vector<Hook>{}) {
          const auto axis = std::ranges::find(answer.plan->mesh, hook.mesh_axis, &plan::MeshAxis::name);
          for (const std::uint64_t elements : group_sizes) {
            try {
              check_group(member, job, *answer.plan, {hook, elements, axis->size, varies(*answer.plan, hook)});
            } catch (const std::exception& problem) {
              throw Failure(fmt::format("{} over {} with {}, {} elements: {}", program, ranks, job.mesh, elements,
                                        problem.what()));
            }
          }
        }
      }
    }
  }
}

}  // namespace

void add_hook_cases(std::vector<StrategyCase>& cases) {
  cases.push_back({.name = "hooks, where it has some", .run = hooks_of_plans, .ranks = 1});
}

}  // namespace shardrun::conformance
