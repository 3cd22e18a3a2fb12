#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "core/base/error.h"
#include "plugins/conformance/cases.h"
#include "plugins/conformance/strategy_jobs.h"
#include "plugins/loader/hooks.h"

namespace shardrun::conformance {
namespace {

using plugins::Hook;
using plugins::HookKind;
using plugins::HookPlan;
using plugins::Hooks;
using plugins::HookStep;

/// How large groups are: one element, fewer than members, odd, round.
constexpr std::uint64_t group_sizes[] = {1, 2, 7, 64, 1001};
constexpr std::int64_t rounds = 3;

/// A buffer of 4-byte elements between bytes that are nobody's.
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

/// What each member has.
using Memory = std::vector<std::vector<Guarded>>;

struct Group {
  const Hook& hook;
  std::uint64_t elements;
  std::uint32_t members;
};

void copy(Guarded& from, std::uint64_t first, Guarded& to, std::uint64_t at, std::uint64_t count) {
  std::memcpy(to.floats() + at, from.floats() + first, count * sizeof(float));
}

void reduce(Memory& memory, const HookStep& step) {
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

void carry_out(Memory& memory, const HookStep& step) {
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

/// The members' tensors, as they differ from round to round, and their states, which begin as zeros.
Memory first_memory(const Group& group, const HookPlan& plan) {
  Memory memory(group.members);
  for (std::vector<Guarded>& member : memory) {
    for (std::size_t b = 0; b <= group.hook.states.size(); ++b) {
      member.emplace_back(group.elements);
      std::fill_n(member.back().floats(), group.elements, 0.0F);
    }
    for (const plugins::HookBuffer& buffer : plan.buffers) {
      member.emplace_back(buffer.elements);
    }
  }
  return memory;
}

void fill_tensors(Memory& memory, std::int64_t round) {
  for (std::size_t m = 0; m < memory.size(); ++m) {
    for (std::uint64_t i = 0; i < memory[m][0].elements(); ++i) {
      const auto number = (i * 37 + m * 101 + static_cast<std::uint64_t>(round) * 13) % 64;
      memory[m][0].floats()[i] = static_cast<float>(number) / 16 - 2;
    }
  }
}

void call(const Hooks& hooks, const Group& group, std::vector<Guarded>& buffers, std::uint32_t number,
          std::uint32_t member, std::int64_t step) {
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
  made.samples = 10;
  made.own_samples = 10 / group.members;
  hooks.run(group.hook.kind, group.elements, group.members, made);
  if (!std::all_of(buffers.begin(), buffers.end(), [](const Guarded& buffer) { return buffer.is_kept(); })) {
    throw Failure(fmt::format("hook {}, call {}: it wrote outside of its buffers", to_string(group.hook.kind), number));
  }
}

/// What is left in all tensors and states. `of`: whom a member asks.
std::vector<float> do_rounds(const Group& group, const HookPlan& plan, const std::function<const Hooks&(std::size_t)>& of,
                             bool varies) {
  Memory memory = first_memory(group, plan);
  for (std::int64_t round = 0; round < rounds; ++round) {
    fill_tensors(memory, round);
    for (const HookStep& step : plan.steps) {
      if (step.kind != HookStep::Kind::call) {
        carry_out(memory, step);
        continue;
      }
      for (std::uint32_t m = 0; m < group.members; ++m) {
        call(of(m), group, memory[m], step.call, m, round);
      }
    }
    for (std::size_t m = 1; m < memory.size() && !varies; ++m) {
      if (std::memcmp(memory[m][0].data(), memory[0][0].data(), group.elements * sizeof(float)) != 0) {
        throw Failure(fmt::format("hook {} leaves members 0 and {} with other tensors, of {} elements, and the plan "
                                  "does not let them vary",
                                  to_string(group.hook.kind), m, group.elements));
      }
    }
  }
  std::vector<float> left;
  for (std::vector<Guarded>& member : memory) {
    for (std::size_t b = 0; b <= group.hook.states.size(); ++b) {
      left.insert(left.end(), member[b].floats(), member[b].floats() + group.elements);
    }
  }
  return left;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool same_plan(const HookPlan& a, const HookPlan& b) {
  return std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                    [](const auto& x, const auto& y) {
                      return x.whole_numbers == y.whole_numbers && x.elements == y.elements;
                    }) &&
         std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), b.steps.end(), [](const auto& x, const auto& y) {
           return x.kind == y.kind && x.call == y.call && x.send == y.send && x.receive == y.receive;
         });
}

void check_group(StrategyMember& member, const StrategyJob& job, const plugins::PlanDraft& draft, const Group& group) {
  const auto open = [&] { return std::make_unique<const Hooks>(member.open_another(), job.request, draft); };
  const auto one = open();
  const HookPlan plan = one->plan(group.hook.kind, group.elements, group.members);
  if (!same_plan(plan, one->plan(group.hook.kind, group.elements, group.members)) ||
      !same_plan(plan, open()->plan(group.hook.kind, group.elements, group.members))) {
    throw Failure(fmt::format("hook {}, asked again for {} elements, plans otherwise", to_string(group.hook.kind),
                              group.elements));
  }
  const bool varies = std::any_of(draft.varying.begin(), draft.varying.end(), [&](const plugins::VaryingTensor& each) {
    return each.mesh_axis == group.hook.mesh_axis;
  });
  const bool may_differ = varies || group.hook.kind == HookKind::after_step;
  const std::vector<float> left = do_rounds(
      group, plan, [&](std::size_t) -> const Hooks& { return *one; }, may_differ);
  std::map<std::size_t, std::unique_ptr<const Hooks>> own;
  const auto own_of = [&](std::size_t m) -> const Hooks& {
    std::unique_ptr<const Hooks>& mine = own[m];
    mine = mine ? std::move(mine) : open();
    return *mine;
  };
  if (!same_bits(left, do_rounds(group, plan, own_of, may_differ))) {
    throw Failure(fmt::format("hook {} leaves something else where each member has an instance of its own: it keeps "
                              "what belongs into its states",
                              to_string(group.hook.kind)));
  }
}

/// Of every job whose plan has hooks: what they answer and do with groups of all sizes.
void hooks_of_plans(StrategyMember& member) {
  for (const std::string& program : program_names()) {
    for (const std::uint32_t ranks : rank_counts()) {
      for (const StrategyJob& job : jobs_of(program, ranks)) {
        const Answer answer = ask(member.strategy(), job.request);
        for (const Hook& hook : answer.plan ? answer.plan->hooks : std::vector<Hook>{}) {
          const auto axis = std::ranges::find(answer.plan->mesh, hook.mesh_axis, &plugins::MeshAxis::name);
          for (const std::uint64_t elements : group_sizes) {
            if (axis->size > 1) {
              try {
                check_group(member, job, *answer.plan, {hook, elements, axis->size});
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
}

}  // namespace

void add_hook_cases(std::vector<StrategyCase>& cases) {
  cases.push_back({.name = "hooks, where it has some", .run = hooks_of_plans, .ranks = 1});
}

}  // namespace shardrun::conformance
