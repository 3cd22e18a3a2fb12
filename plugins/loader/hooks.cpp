#include "plugins/loader/hooks.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/base/error.h"
#include "plugins/loader/call.h"
#include "plugins/loader/find.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/raw_attributes.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

/// The host's side of sr_hook_writer.
class HookRecorder final : public Recorder {
 public:
  explicit HookRecorder(const sr_hook_group& group) : group_(group), elements_(1 + group.states, group.elements) {
    writer_.struct_size = sizeof(writer_);
    writer_.self = this;
    writer_.add_buffer = [](void* self, std::uint32_t element, std::uint64_t elements, sr_error* error) {
      return record_in<HookRecorder>(self, error, "add_buffer", nullptr,
                                     [&](HookRecorder& to) { to.add_buffer(element, elements); });
    };
    writer_.add_call = [](void* self, std::uint32_t call, sr_error* error) {
      return record_in<HookRecorder>(self, error, "add_call", nullptr, [&](HookRecorder& to) {
        to.plan_.steps.push_back({.kind = plan::HookStep::Kind::call, .call = call});
      });
    };
    writer_.add_exchange = [](void* self, const sr_exchange* exchange, sr_error* error) {
      return record_in<HookRecorder>(self, error, "add_exchange", nullptr, [&](HookRecorder& to) {
        to.add_exchange(read_struct<sr_exchange>(exchange, SR_EXCHANGE_SIZE_1_1, "the exchange"));
      });
    };
  }

  [[nodiscard]] const sr_hook_writer& writer() const noexcept { return writer_; }

  [[nodiscard]] plan::HookPlan finish() {
    if (refusal()) {
      throw *refusal();
    }
    return std::move(plan_);
  }

 private:
  void add_buffer(std::uint32_t element, std::uint64_t elements) {
    if (element != SR_ELEMENT_F32 && element != SR_ELEMENT_I32) {
      refuse_with(fmt::format("there is no element type {}", element));
    }
    if (elements == 0 || elements > most_elements - added_) {
      refuse_with(fmt::format("buffer {} has {} elements, expected 1 or more, and at most {} in all buffers",
                              elements_.size(), elements, most_elements));
    }
    added_ += elements;
    plan_.buffers.push_back({element == SR_ELEMENT_I32, elements});
    elements_.push_back(elements);
  }

  void add_exchange(const sr_exchange& exchange) {
    const plan::HookStep::Kind kind = kind_of(exchange.kind);
    for (const std::uint32_t buffer : {exchange.send, exchange.receive}) {
      if (buffer >= elements_.size()) {
        refuse_with(fmt::format("there is no buffer {}: the last is {}", buffer, elements_.size() - 1));
      }
    }
    if (whole_numbers(exchange.send) != whole_numbers(exchange.receive)) {
      refuse_with(fmt::format("buffers {} and {} have different elements", exchange.send, exchange.receive));
    }
    const std::uint64_t sent = elements_[exchange.send];
    const std::uint64_t received = elements_[exchange.receive];
    const bool sums = exchange.kind == SR_EXCHANGE_ALL_REDUCE || exchange.kind == SR_EXCHANGE_REDUCE_SCATTER;
    if (sums && whole_numbers(exchange.send)) {
      refuse_with(fmt::format("buffer {} has whole numbers, and what is summed is float32", exchange.send));
    }
    if (exchange.send == exchange.receive && exchange.kind != SR_EXCHANGE_ALL_REDUCE) {
      refuse_with(fmt::format("it sends and receives buffer {}: only an all_reduce is in place", exchange.send));
    }
    plan_.steps.push_back({.kind = kind, .send = exchange.send, .receive = exchange.receive});
    if (received != expected(exchange.kind, sent)) {
      refuse_with(fmt::format("it sends {} elements and receives {}, which over {} members is no exchange of kind {}",
                              sent, received, group_.members, exchange.kind));
    }
  }

  /// The number of elements that an exchange receives when it sends `sent`. For an impossible exchange, a number that
  /// no buffer has.
  [[nodiscard]] std::uint64_t expected(std::uint32_t kind, std::uint64_t sent) const noexcept {
    constexpr std::uint64_t never = UINT64_MAX;
    switch (kind) {
      case SR_EXCHANGE_ALL_GATHER: return sent > never / group_.members ? never : sent * group_.members;
      case SR_EXCHANGE_REDUCE_SCATTER: return sent % group_.members == 0 ? sent / group_.members : never;
      case SR_EXCHANGE_ALL_TO_ALL: return sent % group_.members == 0 ? sent : never;
      default: return sent;
    }
  }

  static plan::HookStep::Kind kind_of(std::uint32_t kind) {
    switch (kind) {
      case SR_EXCHANGE_ALL_REDUCE: return plan::HookStep::Kind::all_reduce;
      case SR_EXCHANGE_ALL_GATHER: return plan::HookStep::Kind::all_gather;
      case SR_EXCHANGE_REDUCE_SCATTER: return plan::HookStep::Kind::reduce_scatter;
      case SR_EXCHANGE_ALL_TO_ALL: return plan::HookStep::Kind::all_to_all;
      default: refuse_with(fmt::format("there is no exchange of kind {}", kind));
    }
  }

  [[nodiscard]] bool whole_numbers(std::uint32_t buffer) const {
    return buffer > group_.states && plan_.buffers[buffer - group_.states - 1].whole_numbers;
  }

  static constexpr std::uint64_t most_elements = std::uint64_t{1} << 40;

  const sr_hook_group& group_;
  std::uint64_t added_ = 0;  ///< elements added so far, in all buffers
  sr_hook_writer writer_{};
  plan::HookPlan plan_;
  std::vector<std::uint64_t> elements_;  ///< of each buffer
};

}  // namespace

Hooks::Hooks(Plugin plugin, const StrategyRequest& request, const plan::Plan& plan)
    : plugin_(std::move(plugin)),
      given_(request.job),
      options_(checked_with_defaults(plugin_.options(), request.options)),
      raw_options_(raw_options(options_)),
      job_(given_, raw_view(raw_options_)),
      name_(fmt::format("strategy '{}'", plugin_.manifest().name)) {
  functions_ = read_struct<sr_strategy>(plugin_.table().functions, SR_STRATEGY_SIZE_1_0, name_);
  for (const plan::Hook& hook : plan.hooks) {
    const bool has = hook.kind == plan::HookKind::sync_gradients ? functions_.sync_gradients != nullptr
                                                                 : functions_.after_step != nullptr;
    if (!has || functions_.plan_hook == nullptr) {
      refuse_with(fmt::format("{} ({}) plans the hook {}, but has no {}", name_, plugin_.path().string(),
                              to_string(hook.kind), has ? "plan_hook" : to_string(hook.kind)));
    }
  }
}

HookTables::HookTables(const plan::HookGroup& group) : group_(group) {
  std::uint64_t elements = 0;
  for (const plan::HookTensor& tensor : group.tensors) {
    tensors_.push_back({.struct_size = sizeof(sr_hook_tensor),
                        .rank = static_cast<std::uint32_t>(tensor.shape.size()),
                        .name = tensor.name.c_str(),
                        .shape = tensor.shape.data(),
                        .first = elements});
    std::uint64_t size = 1;
    for (const std::int64_t extent : tensor.shape) {
      size *= static_cast<std::uint64_t>(extent);
    }
    elements += size;
  }
  raw_ = {.struct_size = sizeof(sr_hook_group),
          .hook = group.kind == plan::HookKind::sync_gradients ? SR_HOOK_SYNC_GRADIENTS : SR_HOOK_AFTER_STEP,
          .elements = elements,
          .members = group.members,
          .states = group.states,
          .tensors = tensors_.data(),
          .tensor_count = static_cast<std::uint32_t>(tensors_.size()),
          .tensor_stride = sizeof(sr_hook_tensor)};
}

plan::HookPlan Hooks::ask(const plan::HookGroup& group) const {
  const HookTables tables(group);
  HookRecorder recorder(tables.raw());
  const std::string prefix = fmt::format("{}, {}", name_, to_string(group));
  try {
    const CallGuard guard(label_of(plugin_), "plan_hook", call_limit());
    call_plugin(prefix, ErrorCode::job, [&](sr_error* error) {
      return functions_.plan_hook(plugin_.table().self, &job_.raw(), &tables.raw(), &recorder.writer(), error);
    });
  } catch (const Error&) {
    if (!recorder.refusal()) {
      throw;
    }
  }
  try {
    return recorder.finish();
  } catch (const Error& refusal) {
    throw Error(refusal.code(), fmt::format("{} ({}) plans what cannot be done: {}", prefix, plugin_.path().string(),
                                            refusal.message()));
  }
}

void Hooks::run(const HookTables& tables, sr_hook_call call) const {
  const plan::HookGroup& group = tables.group();
  call.struct_size = sizeof(call);
  call.group = &tables.raw();
  call.job = &job_.raw();
  const auto function =
      group.kind == plan::HookKind::sync_gradients ? functions_.sync_gradients : functions_.after_step;
  try {
    call_plugin(name_, ErrorCode::plugin,
                [&](sr_error* error) { return function(plugin_.table().self, &call, error); });
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}, call {}: {}", to_string(group), call.call, error.message()));
  }
}

}  // namespace shardrun::plugins
