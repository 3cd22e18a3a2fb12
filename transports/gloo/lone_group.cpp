#include "transports/gloo/lone_group.h"

#include <shardrun/sdk/collectives.hpp>

#include <string>

namespace shardrun::gloo_transport {
namespace {

class LoneOp final : public sdk::Op {
 public:
  LoneOp(LoneGroup& group, const sdk::OpSpec& op)
      : group_(group), schedule_(schedule_of(op, 0, 1)), places_(op, schedule_.dtype) {}

  void start(void*, std::int64_t) override {
    throw_failure();
    for (const sdk::Stage& stage : schedule_.stages) {
      for (const sdk::LocalStep& step : stage.steps) {
        places_.run(step);
      }
    }
    is_done_ = true;
  }
  bool test() override {
    if (!is_done_) {
      throw_failure();
    }
    return is_done_;
  }
  bool wait(std::int64_t) override { return test(); }

 private:
  void throw_failure() {
    if (const auto failure = group_.error()) {
      throw sdk::TransportError(*failure);
    }
  }

  LoneGroup& group_;
  sdk::Schedule schedule_;
  sdk::Places places_;
  bool is_done_ = false;
};

}  // namespace

std::unique_ptr<sdk::Op> LoneGroup::prepare(std::span<const sdk::OpSpec> ops, std::int64_t) {
  return std::make_unique<LoneOp>(*this, ops[0]);
}

void LoneGroup::abort(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) {
    failure_.emplace(SR_ABORTED, std::string(reason));
  }
}

std::optional<sdk::TransportError> LoneGroup::error() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace shardrun::gloo_transport
