#pragma once

#include <fmt/format.h>
#include <shardrun/sdk/transport/worker.hpp>
#include <shardrun/transport.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/transport.h"

namespace shardrun::plugins {

class ComposedGroup;

[[nodiscard]] inline sr_error empty_error() noexcept {
  sr_error error{};
  error.struct_size = sizeof(error);
  return error;
}

/// A plugin's failure, with a text that can be printed.
[[nodiscard]] sdk::TransportError failure_of(std::int32_t status, const sr_error& error);

/// Throws Error "WHAT: TEXT" with the code for an SR_... status.
[[noreturn]] void fail(std::string_view what, const sdk::TransportError& failure);

/// The host's functions for an opened transport. `self` is their first argument.
[[nodiscard]] sr_transport_host raw_host(TransportState& self) noexcept;

/// A transport that another one has opened, and its options.
struct WrappedTransport {
  WrappedTransport(Plugin opened, const OptionValues& given);

  Plugin plugin;
  OptionValues values;
  std::vector<sr_option_value> options;  ///< point into `values`
};

/// The functions of an opened plugin. Throws Error{plugin} where one is missing.
[[nodiscard]] sr_transport functions_of(const Plugin& plugin);

/// A loaded transport, opened or not. Groups and ops keep it alive.
struct TransportState {
  TransportState(Plugin opened, Directories searched, LogSink sink);
  TransportState(const TransportState&) = delete;
  TransportState& operator=(const TransportState&) = delete;
  ~TransportState();

  /// "transport NAME, DOING"
  [[nodiscard]] std::string what(std::string_view doing) const;

  /// Calls one of the plugin's functions: `act` takes an sr_error* and returns a status. Throws Error. `limit`: for
  /// functions without a deadline.
  template <class Call>
  void call(std::string_view doing, Call act, std::optional<std::chrono::milliseconds> limit = std::nullopt) const {
    const CallGuard guard(label, doing, limit);
    sr_error error = empty_error();
    std::int32_t status = SR_OK;
    try {
      status = act(&error);
    } catch (const std::exception& escaped) {
      throw Error(ErrorCode::transport, fmt::format("{}: it let an exception out, which no plugin may: {}", what(doing),
                                                    printable(escaped.what())));
    }
    if (status != SR_OK) {
      fail(what(doing), failure_of(status, error));
    }
  }

  /// REQUIRES: it is configured.
  [[nodiscard]] sdk::Props props() const;
  /// What the transport says of an op. Nothing where the host composes the op: where the transport does not offer it,
  /// or rounds partial sums in host memory. `why`: gets what the transport says where it does not offer it. Throws
  /// Error.
  [[nodiscard]] std::optional<sdk::OpInfo> offered(const sdk::OpSpec& op, std::uint32_t members,
                                                   std::string* why = nullptr) const;
  /// The same of an op as the job asks for it: nothing either where it is to reduce in the order of the members and the
  /// transport reduces otherwise, or where messages are checked.
  [[nodiscard]] std::optional<sdk::OpInfo> offered_as_asked(const sdk::OpSpec& op, std::uint32_t members) const;

  /// Call it once, before other functions; otherwise the defaults apply.
  void configure(TransportSetup given);
  void require_configured();
  /// Opens and configures another transport. Throws Error.
  [[nodiscard]] const sr_plugin& wrap(const std::string& name);

  std::list<WrappedTransport> wrapped;  ///< closed after `plugin`, which wraps them
  Plugin plugin;
  std::string label;
  Directories directories;
  LogSink log;
  sr_transport functions{};
  void* self = nullptr;
  TransportHost* host = nullptr;  ///< set once it is open
  sr_transport_host raw_host{};
  bool is_configured = false;
  TransportSetup setup;
  std::size_t configuring = 0;  ///< depth of transports being configured, each opened by the one before
  bool is_open = false;
  std::vector<std::uint64_t> registrations;
};

struct TransportGroup::State {
  State(std::shared_ptr<TransportState> of, sdk::GroupSpec given);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  /// The group that runs ops which the transport lacks. The first call, which every member makes, connects it. A group
  /// of one needs it only for ops in queues.
  [[nodiscard]] ComposedGroup& composing(std::int64_t deadline);
  /// The same; null before the first call. Any thread.
  [[nodiscard]] ComposedGroup* composed() const noexcept { return composed_.load(std::memory_order_acquire); }

  /// Runs the plugin's ops in queues of the host that the transport does not take. From the first one on, it runs and
  /// frees all of the plugin's ops of the group: one thread at a time may.
  [[nodiscard]] sdk::Worker& background();
  /// The same; null before the first call. Any thread.
  [[nodiscard]] sdk::Worker* worker() const noexcept { return worker_.load(std::memory_order_acquire); }

  /// Why one of the two failed. Any thread.
  [[nodiscard]] std::optional<sdk::TransportError> failure_of_workers() const;
  /// Fails the plugin's group. Any thread.
  void abort_native(const std::string& reason) const noexcept;

  std::shared_ptr<TransportState> transport;
  sdk::GroupSpec spec;
  std::uint64_t handle = 0;

 private:
  std::unique_ptr<ComposedGroup> composed_group_;
  std::atomic<ComposedGroup*> composed_ = nullptr;
  std::unique_ptr<sdk::Worker> background_;
  std::atomic<sdk::Worker*> worker_ = nullptr;
};

/// A prepared op, of the plugin's or composed. It keeps its group alive.
struct TransportOp::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  virtual ~State() = default;

  virtual void start(std::int64_t deadline) = 0;
  virtual void enqueue(const TransportQueue& queue, std::int64_t timeout) = 0;
  virtual void join(const TransportQueue& queue) = 0;
  [[nodiscard]] virtual bool test() = 0;
  [[nodiscard]] virtual bool wait(std::int64_t deadline) = 0;
  [[nodiscard]] virtual std::optional<sdk::OpTimes> times() = 0;
};

/// Gives each op the `needed` scratch that it does not bring, and returns the memory.
[[nodiscard]] std::vector<std::byte> provide_scratch(std::vector<sdk::OpSpec>& ops,
                                                     const std::vector<std::uint64_t>& needed);

/// Whether this process can access the op's buffers. Those that are missing count as host memory.
[[nodiscard]] bool is_in_host_memory(const sdk::OpSpec& op) noexcept;

/// Whether an op is to reduce in the order of the members, ((0 + 1) + 2) + …, with the same bits over every transport.
[[nodiscard]] inline bool is_in_order(const sdk::OpSpec& op) noexcept { return (op.flags & SR_OP_FLAG_IN_ORDER) != 0; }

/// An op that the transport lacks is made of sends and receives. In it this process itself reduces, so it must be able
/// to access the buffers. Throws Error, which says what the transport lacks, or that the op was to be checked.
void require_host_memory(const TransportState& transport, const sdk::OpSpec& op, std::uint32_t members);

/// Creates a group of the plugin's. Throws Error.
[[nodiscard]] std::uint64_t create_group(const TransportState& transport, const sdk::GroupSpec& spec);

}  // namespace shardrun::plugins
