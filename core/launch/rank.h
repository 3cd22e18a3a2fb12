#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/protocol.h"

namespace shardrun::launch {

/// A rank's identity in its job, as its launcher handed it over.
struct RankContext {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;  ///< 0: unknown until all ranks have joined
  std::string address;       ///< of the launcher
  std::uint16_t port = 0;
  std::string run;                            ///< name of this run, 16 characters of [0-9a-f]; the same on every rank
  std::array<std::uint8_t, 32> token = {};    ///< secret: any process that has it may join the job
  std::chrono::milliseconds heartbeat{1000};  ///< how often the launcher wants to hear from this rank
  std::vector<std::uint32_t> machines = {};   ///< number of each rank's machine; empty: all on one machine
  std::string own_address = {};  ///< where others reach this machine; empty: this end of the control connection

  // Set for a rank that another launcher started. Rank 0's process then does the launcher's work.
  bool is_hosted = false;  ///< then `run` and `machines` are known only after Rank::meet()
  /// How long rank 0's process may be silent before this rank counts it as lost; 0: forever.
  std::chrono::milliseconds silence{0};
  std::chrono::milliseconds grace{0};  ///< from an abort until this process ends itself, whatever it is doing; 0: never
};

/// The context of this process if launch() started it as a rank. Otherwise nullopt, whatever the variable RANK says.
/// Only the first call finds it, because the call removes it from the environment and closes its descriptor. Call it
/// before starting threads. Throws Error{io} if the context is invalid.
[[nodiscard]] std::optional<RankContext> take_rank_context();

/// This process as a rank: its control connection, which has its own thread, and the store that all ranks share.
/// Functions may be called on any thread unless they say otherwise.
///
/// A rank ends in one of two ways: with goodbye() and exit code 0 (or 128 + signal after a stop), or with fail() and
/// another exit code. A process that ends in any other way counts as failed.
class Rank {
 public:
  using Clock = std::chrono::steady_clock;
  using Deadline = Clock::time_point;
  static constexpr Deadline no_deadline = Deadline::max();  ///< only the end of the job ends the wait

  /// Joins the job. Returns when the launcher has accepted this rank. `job`: text of `key = value` lines, which must
  /// equal the launcher's. Throws Error{io} if the launcher refuses or `deadline` passes.
  Rank(RankContext context, const std::string& job, Deadline deadline);
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank();  ///< does not wait for any other process

  /// Waits until all ranks have joined, and completes the context of a hosted rank. Called once, before the functions
  /// below except fail(); others than hosted ranks need not call it. Waits without a deadline: the store's host ends
  /// the job if a rank does not join in time. Throws Error{aborted} then.
  void meet();

  [[nodiscard]] int rank() const noexcept { return context_.rank; }
  [[nodiscard]] int world_size() const noexcept { return context_.world_size; }
  [[nodiscard]] const RankContext& context() const noexcept { return context_; }
  /// The address of this machine on which listeners for other ranks should listen.
  [[nodiscard]] std::string own_address() const;
  /// A key for one purpose: the same on all ranks of the job, and secret. It does not reveal the job's token.
  [[nodiscard]] std::array<std::uint8_t, 32> key_for(std::string_view purpose) const;

  /// Sets a key's value for all ranks. Returns at once. Setting a key twice, even by different ranks, fails the job.
  /// Throws Error{io} if key and value are longer than a frame (1 MiB), Error{aborted} if the job is aborted.
  void set(std::string_view key, std::span<const std::byte> value);
  void set(std::string_view key, std::string_view value);

  /// Waits until a rank has set the key. Throws Error{timeout} if `deadline` passes first,
  /// Error{aborted} if the job is aborted.
  [[nodiscard]] std::string get(std::string_view key, Deadline deadline);

  /// Sends a message to the launcher's LaunchSettings::on_message. Messages arrive in order. Returns at once. Throws
  /// Error{io} if the message is longer than a frame, or if the launcher has 64 MiB of messages still to read.
  void message(std::string_view kind, std::string_view bytes);
  void message(std::string_view kind, std::span<const std::byte> bytes);

  /// True once the job is aborted or the launcher is gone; then all waits should end. It stays true.
  [[nodiscard]] const std::atomic<bool>& aborted() const noexcept;
  [[nodiscard]] std::string abort_reason() const;

  /// Sets a callback for the abort, called once: on the connection's thread, or by on_abort itself if the job is
  /// aborted already. The callback must be quick, must not throw, and must not call a function of this object that
  /// waits. It replaces an earlier callback; if that one is running, on_abort waits for it to end. An empty
  /// callback only removes the earlier one.
  void on_abort(std::function<void(const std::string& reason)> callback);

  /// The signal that asks for an orderly stop (SIGINT, SIGTERM, SIGHUP, SIGUSR1), or 0.
  [[nodiscard]] int stop_signal() const noexcept;

  /// Whether all ranks are asked to pause (Ctrl-Z). Each rank then calls pause() once, all at the same point of their
  /// work and with no operation between ranks in progress. pause() returns when all ranks continue. pause() throws
  /// Error{aborted} if the job is aborted.
  [[nodiscard]] bool pause_asked() const noexcept;
  void pause();

  /// Tells the launcher why this rank is about to end. Waits until the launcher knows, so that it hears of this failure
  /// before other ranks notice that this rank is gone. After a consequence, also waits for the abort. The wait ends
  /// early if the connection is lost, and after 2 s. If the job is already aborted, the failure counts as a
  /// consequence, whatever `kind` says. `awaited`: the rank for which this one waited until a timeout; that rank then
  /// counts as the cause. Returns whether the launcher knows of the failure, or has itself aborted the job before it;
  /// if not, nobody else will report it.
  bool fail(FailureKind kind, std::string_view text, std::optional<int> awaited = std::nullopt) noexcept;

  /// Leaves the job. Only await_end() can follow. Waits until the launcher has read everything sent before. A later
  /// abort does not concern this rank any more. Throws Error{aborted} if the job is aborted before that, Error{io} if
  /// `deadline` passes.
  void goodbye(Deadline deadline);

  /// After goodbye: waits until the launcher closes the connection, which it does when all ranks are done, or until
  /// `deadline`.
  void await_end(Deadline deadline) noexcept;

 private:
  RankContext context_;
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace shardrun::launch
