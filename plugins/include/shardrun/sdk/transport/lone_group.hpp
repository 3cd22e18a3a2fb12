#pragma once

/// A group of one member, for transports whose own groups need at least two: a collective receives what it sends.

#include <shardrun/sdk/transport/op.hpp>
#include <shardrun/sdk/transport/group.hpp>

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shardrun::sdk {

/// A group for host memory. Its ops are copies that run in `start`.
class LoneGroup final : public Group {
 public:
  std::unique_ptr<Op> prepare(std::span<const OpSpec> ops, Deadline) override {
    throw_failure();
    return std::make_unique<Copy>(*this, ops[0]);
  }

  void abort(std::string_view reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_.emplace(SR_ABORTED, std::string(reason));
    }
  }

  std::optional<TransportError> error() override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  class Copy final : public Op {
   public:
    Copy(LoneGroup& group, const OpSpec& op) : group_(group), bytes_(recv_elements(op, 0, 1) * dtype_size(op.dtype)) {
      if (bytes_ > 0) {
        from_ = op.send->data;
        to_ = op.recv->data;
      }
    }

    void start(void*, Deadline) override {
      is_done_ = false;
      group_.throw_failure();
      if (from_ != to_) {
        std::memcpy(to_, from_, bytes_);
      }
      is_done_ = true;
    }
    bool test() override {
      if (!is_done_) {
        group_.throw_failure();
      }
      return is_done_;
    }
    bool wait(Deadline) override { return test(); }

   private:
    LoneGroup& group_;
    std::uint64_t bytes_;
    const void* from_ = nullptr;
    void* to_ = nullptr;
    bool is_done_ = false;
  };

  void throw_failure() const {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      throw TransportError(*failure_);
    }
  }

  mutable std::mutex mutex_;
  std::optional<TransportError> failure_;
};

}  // namespace shardrun::sdk
