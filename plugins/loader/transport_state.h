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
#include "core/base/text.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/transport.h"

namespace shardrun::plugins {

class ComposedGroup;

[[nodiscard]] inline sr_error empty_error() noexcept {
  sr_error error{};
  error.struct_size = sizeof(error);
  return error;
}

/// A plugin's failure. Its text is safe to print.
[[nodiscard]] sdk::TransportError failure_of(std::int32_t status, const sr_error& error);

/// Throws an Error "WHAT: TEXT" whose code corresponds to an SR_... status.
[[noreturn]] void fail(std::string_view what, const sdk::TransportError& failure);

/// The table of host functions for an opened transport. `self` is their first argument.
[[nodiscard]] sr_transport_host raw_host(TransportState& self) noexcept;

/// A transport that another transport has opened, and its options.
struct WrappedTransport {
  WrappedTransport(Plugin opened, const OptionValues& given);

  Plugin plugin;
  OptionValues values;
  std::vector<sr_option_value> options;  ///< point into `values`
};

/// The functions of an opened plugin. Throws Error{plugin} if one is missing.
[[nodiscard]] sr_transport functions_of(const Plugin& plugin);

/// A loaded transport, opened or not. Groups and ops keep it alive.
struct TransportState {
  TransportState(Plugin opened, Directories searched, LogSink sink);
  TransportState(const TransportState&) = delete;
  TransportState& operator=(const TransportState&) = delete;
  ~TransportState();

  /// A text for messages: "transport NAME, DOING".
  [[nodiscard]] std::string what(std::string_view doing) const;

  /// Calls one of the plugin's functions: `act` takes an sr_error* and returns a status. Throws Error. `limit`: that of
  /// the CallGuard.
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
    } catch (...) {
      throw Error(ErrorCode::transport, fmt::format("{}: it let an exception out, which no plugin may", what(doing)));
    }
    if (status != SR_OK) {
      fail(what(doing), failure_of(status, error));
    }
  }

  /// REQUIRES: the transport is configured.
  [[nodiscard]] sdk::Props props() const;
  /// What the transport says about an op. Nothing if the host has to compose the op: because the transport does not
  /// offer it, or because it rounds partial sums in host memory. `why`: gets the transport's reason for not offering
  /// it. Throws Error.
  [[nodiscard]] std::optional<sdk::OpInfo> offered(const sdk::OpSpec& op, std::uint32_t members,
                                                   std::string* why = nullptr) const;
  /// Like offered(), but considers what the job asks for. Also nothing if the op must reduce in the order of the
  /// members and the transport reduces otherwise, or if messages are checked.
  [[nodiscard]] std::optional<sdk::OpInfo> offered_as_asked(const sdk::OpSpec& op, std::uint32_t members) const;

  /// Call it once, before other functions. Without it the defaults apply.
  void configure(TransportSetup given);
  void require_configured();
  /// Opens and configures another transport. Throws Error.
  [[nodiscard]] const sr_plugin& wrap(const std::string& name);

  std::list<WrappedTransport> wrapped;  ///< closed after `plugin`, which uses them
  Plugin plugin;
  std::string label;
  Directories directories;
  LogSink log;
  sr_transport functions{};
  void* self = nullptr;
  TransportHost* host = nullptr;  ///< null until it is open
  sr_transport_host raw_host{};
  bool is_configured = false;
  TransportSetup setup;
  std::size_t configuring = 0;  ///< depth of nested configure calls: each but the first is of a wrapped transport
  bool is_open = false;
  std::vector<std::uint64_t> registrations;
};

struct TransportGroup::State {
  State(std::shared_ptr<TransportState> of, sdk::GroupSpec given);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  /// The group that runs ops which the transport lacks. The first call connects it, so every member must make that
  /// call. A group of one needs it only for ops in queues.
  [[nodiscard]] ComposedGroup& composing(std::int64_t deadline);
  /// The same group, but null before the first call of composing(). Any thread may call it.
  [[nodiscard]] ComposedGroup* composed() const noexcept { return composed_.load(std::memory_order_acquire); }

  /// The worker that runs the plugin's ops in host queues if the transport does not support these. From its first op
  /// on, it runs and frees all of the plugin's ops of the group, because only one thread at a time may.
  [[nodiscard]] sdk::Worker& background();
  /// The same worker, but null before the first call of background(). Any thread may call it.
  [[nodiscard]] sdk::Worker* worker() const noexcept { return worker_.load(std::memory_order_acquire); }

  /// Why one of the two workers failed; nothing if none has. Any thread may call it.
  [[nodiscard]] std::optional<sdk::TransportError> failure_of_workers() const;
  /// Fails the plugin's group. Any thread may call it.
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

/// A prepared op, either the plugin's or composed. It keeps its group alive.
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

/// Gives each op that brings less scratch than the `needed` bytes such scratch in host memory. Returns the memory.
[[nodiscard]] std::vector<std::byte> provide_scratch(std::vector<sdk::OpSpec>& ops,
                                                     const std::vector<std::uint64_t>& needed);

/// Whether this process can access the op's buffers. Missing buffers count as host memory.
[[nodiscard]] bool is_in_host_memory(const sdk::OpSpec& op) noexcept;

/// Whether an op must reduce in the order of the members, ((0 + 1) + 2) + …, with the same bits over every transport.
[[nodiscard]] inline bool is_in_order(const sdk::OpSpec& op) noexcept { return (op.flags & SR_OP_FLAG_IN_ORDER) != 0; }

/// Throws Error if an op that has to be composed of sends and receives is not in host memory: this process then
/// reduces, so it must access the buffers. The message says what the transport lacks, or that the op was to be checked.
void require_host_memory(const TransportState& transport, const sdk::OpSpec& op, std::uint32_t members);

/// Creates a group of the plugin. Throws Error.
[[nodiscard]] std::uint64_t create_group(const TransportState& transport, const sdk::GroupSpec& spec);

}  // namespace shardrun::plugins
