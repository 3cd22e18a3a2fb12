#pragma once

/// The objects with which a transport's class works: its settings, the host, groups and ops.

#include <shardrun/sdk/plugin.hpp>
#include <shardrun/sdk/transport/clock.hpp>
#include <shardrun/sdk/transport/op.hpp>
#include <shardrun/sdk/transport/queue.hpp>
#include <shardrun/transport.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::sdk {

/// A prepared op or batch. Its destructor implements op_free.
class Op {
 public:
  Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;
  virtual ~Op() = default;

  virtual void start(void* queue, Deadline deadline) = 0;
  [[nodiscard]] virtual bool test() = 0;
  /// Returns false if `deadline` passed before the op was complete; the op continues. Throws TransportError{SR_TIMEOUT}
  /// if the op missed its own deadline.
  [[nodiscard]] virtual bool wait(Deadline deadline) = 0;
  /// Implement sr_transport::op_enqueue and op_join, for transports whose Props have queue_kinds.
  virtual void enqueue(const Queue&, std::chrono::nanoseconds /*timeout*/) { refuse_queues(); }
  virtual void join(const Queue&) { refuse_queues(); }
  /// The times of a complete op. Nothing if they are not known.
  [[nodiscard]] virtual std::optional<OpTimes> times() const { return std::nullopt; }

 private:
  [[noreturn]] static void refuse_queues() { throw TransportError(SR_UNIMPLEMENTED, "ops in queues are not offered"); }
};

/// A group of ranks. Its destructor implements group_destroy. Any thread may call abort and error.
class Group {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  /// REQUIRES: the ops have passed `validate`.
  [[nodiscard]] virtual std::unique_ptr<Op> prepare(std::span<const OpSpec> ops, Deadline deadline) = 0;
  virtual void abort(std::string_view reason) noexcept = 0;
  /// Why the group failed; nothing if it has not failed.
  [[nodiscard]] virtual std::optional<TransportError> error() = 0;
};

/// The C++ form of sr_transport_props.
struct Props {
  std::uint32_t flags = 0;  ///< SR_TRANSPORT_...
  std::uint32_t memory_kinds = std::uint32_t{1} << SR_MEMORY_HOST;
  /// The kinds of queues that Op::enqueue and Op::join accept: 1 << SR_QUEUE_... for each. A transport that wraps
  /// another and whose ops lack these functions sets it to 0.
  std::uint32_t queue_kinds = 0;

  [[nodiscard]] bool has(std::uint32_t flag) const noexcept { return (flags & flag) != 0; }
  /// `kind`: SR_MEMORY_...
  [[nodiscard]] bool moves(std::uint32_t kind) const noexcept { return kind < 32 && (memory_kinds >> kind & 1U) != 0; }
  /// `kind`: SR_QUEUE_...
  [[nodiscard]] bool takes(std::uint32_t kind) const noexcept { return kind < 32 && (queue_kinds >> kind & 1U) != 0; }

  bool operator==(const Props&) const = default;
};

/// The C++ form of sr_group.
struct GroupSpec {
  std::uint32_t rank = 0;  ///< index into `members`
  std::vector<std::uint32_t> members;
  std::string name;
  std::uint64_t id = 0;
  Deadline deadline;

  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(members.size()); }
  /// "member 1 (rank 3)", for messages.
  [[nodiscard]] std::string name_of(std::uint32_t member) const {
    return "member " + std::to_string(member) + " (rank " + std::to_string(members[member]) + ")";
  }

  bool operator==(const GroupSpec&) const = default;
};

/// The C++ form of sr_transport_host. Copyable. Valid until the transport is closed. Any thread may use it. Failures
/// throw TransportError.
class TransportHost {
 public:
  TransportHost() = default;
  explicit TransportHost(const sr_transport_host* host) : host_(host) {}

  /// The present time by the host's clock, which outside of tests is Deadline::now().
  [[nodiscard]] Deadline now() const noexcept { return Deadline::from_border(host_->now(host_->self)); }
  /// Whether the job is ending.
  [[nodiscard]] bool aborted() const noexcept { return host_->aborted(host_->self) != 0; }

  void store_set(const std::string& key, std::string_view value) const {
    detail::call_transport(
        [&](sr_error* error) { return host_->store_set(host_->self, key.c_str(), value.data(), value.size(), error); });
  }

  /// Waits until the key is set, and returns its value. Throws SR_TIMEOUT at `deadline`, SR_ABORTED soon after the job
  /// begins to end, and SR_INVALID if the value has more than `capacity` bytes.
  [[nodiscard]] std::string store_get(const std::string& key, Deadline deadline, std::size_t capacity = 4096) const {
    std::string value(capacity, '\0');
    const Deadline begin = now();
    for (;;) {
      std::uint64_t bytes = capacity;
      const std::int64_t until = std::min(deadline, now() + longest_gap / 2).to_border();
      bool is_slice_over = false;
      detail::call_transport([&](sr_error* error) {
        const std::int32_t status = host_->store_get(host_->self, key.c_str(), value.data(), &bytes, until, error);
        // If the host gives up before `until`, it has its own reason, which is passed on.
        is_slice_over = status == SR_TIMEOUT && host_->now(host_->self) >= until;
        return is_slice_over ? SR_OK : status;
      });
      if (!is_slice_over) {
        value.resize(bytes);
        return value;
      }
      const Deadline end = now();
      if (end >= deadline) {
        throw TransportError(SR_TIMEOUT, "waited " + std::to_string((end - begin).count() / 1'000'000) +
                                             " ms for key '" + key + "' of the job's store, which no rank has set");
      }
      if (aborted()) {
        throw TransportError(SR_ABORTED,
                             "the job ends; this rank was waiting for key '" + key + "' of the job's store");
      }
    }
  }

  /// Makes the transport `name`, for a transport that wraps it. The new one is configured, and not yet opened.
  [[nodiscard]] const sr_plugin& open_transport(const std::string& name) const {
    const sr_plugin* plugin = nullptr;
    detail::call_transport(
        [&](sr_error* error) { return host_->open_transport(host_->self, name.c_str(), &plugin, error); });
    return *plugin;
  }

  /// The job's options for a wrapped transport, to pass to its `open`. Valid until the transport that wraps it is
  /// closed. REQUIRES: a host of ABI 1.2.
  [[nodiscard]] RawOptions transport_options(const std::string& name) const {
    RawOptions options;
    detail::call_transport([&](sr_error* error) {
      return host_->transport_options(host_->self, name.c_str(), &options.data, &options.count, &options.stride, error);
    });
    return options;
  }

  [[nodiscard]] const sr_transport_host* raw() const noexcept { return host_; }

 private:
  const sr_transport_host* host_ = nullptr;
};

/// The C++ form of sr_transport_config.
struct Config {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t local_rank = 0;
  std::uint32_t local_world_size = 1;
  std::string job;
  std::string address;
  OptionValues options;
  Deadline deadline;
  std::vector<std::uint32_t> machines = {};  ///< the machine of each rank of the world; empty: not known
  std::optional<std::array<std::uint8_t, 32>> secret = std::nullopt;
  TransportHost host;
};

/// The C++ form of sr_transport_setup.
struct Setup {
  std::uint32_t world_size = 0;  ///< 0: not known
  OptionValues options;
  TransportHost host;
};

}  // namespace shardrun::sdk
