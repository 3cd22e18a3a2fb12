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

#include "core/launch/failure.h"

namespace shardrun::launch {

/// A rank's place in its job, as the launcher handed it over.
struct RankContext {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;  ///< 0: not known before all have joined
  std::string address;       ///< of the launcher
  std::uint16_t port = 0;
  std::string run;                            ///< of this run alone, the same on every rank: 16 of [0-9a-f]
  std::array<std::uint8_t, 32> token = {};    ///< keep it to this process: who has it may join the job
  std::chrono::milliseconds heartbeat{1000};  ///< how often the launcher wants to hear from this rank
  std::vector<std::uint32_t> machines = {};   ///< of each rank the number of its machine; empty: all are on one
  std::string own_address = {};  ///< that others reach this machine at; empty: that of the control connection

  // Of a rank that another launcher started, where rank 0's process has the launcher's part:
  bool is_hosted = false;                ///< `run` and `machines` are learnt when all have joined
  std::chrono::milliseconds silence{0};  ///< of rank 0's process, after which this rank takes it as lost; 0: never
  std::chrono::milliseconds grace{0};    ///< from an abort until this process is ended, whatever it does; 0: never
};

/// Who this process is, if launch() started it as a rank; nullopt if not, whatever RANK says. What the launcher handed
/// over is taken out of the environment and its descriptor closed, so the first call alone finds it: make it before
/// there are threads. Throws Error{io} where it is there and makes no sense.
[[nodiscard]] std::optional<RankContext> take_rank_context();

/// This process as a rank: its control connection, on a thread of its own, and through it the store that all ranks
/// share. Functions may be called from any thread unless they say otherwise.
///
/// A rank ends in one of two ways: goodbye() and exit code 0 (or 128 + signal after a stop), or fail() and another exit
/// code. A process that ends without either is taken to have failed.
class Rank {
 public:
  using Clock = std::chrono::steady_clock;
  using Deadline = Clock::time_point;
  static constexpr Deadline no_deadline = Deadline::max();  ///< the end of the job ends the wait

  /// Joins the job: returns once the launcher has said welcome. `job`, any text of `key = value` lines, must equal the
  /// launcher's. Throws Error{io} where it refuses, or `deadline` passes.
  Rank(RankContext context, const std::string& job, Deadline deadline);
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank();  ///< waits for nobody

  [[nodiscard]] int rank() const noexcept { return context_.rank; }
  [[nodiscard]] int world_size() const noexcept { return context_.world_size; }
  [[nodiscard]] const RankContext& context() const noexcept { return context_; }
  /// The address of this machine that listeners for other ranks bind to.
  [[nodiscard]] std::string own_address() const;
  /// A key for one purpose, the same on all ranks of the job and known to nobody else. It does not tell the job's
  /// token.
  [[nodiscard]] std::array<std::uint8_t, 32> key_for(std::string_view purpose) const;

  /// Gives the key a value, for all ranks to see. Returns at once. A key that is set twice, by whomever, fails the job.
  /// Throws Error{io} where key and value are longer than a frame (1 MiB), Error{aborted} where the job is aborted.
  void set(std::string_view key, std::span<const std::byte> value);
  void set(std::string_view key, std::string_view value);

  /// Waits until some rank has set the key. Throws Error{timeout} when `deadline` passes before, Error{aborted} when
  /// the job is aborted.
  [[nodiscard]] std::string get(std::string_view key, Deadline deadline);

  /// Sends something to the launcher's LaunchSettings::on_message, in order. Returns at once.
  /// Throws Error{io} where it is longer than a frame, or where the launcher has not read the last 64 MiB.
  void message(std::string_view kind, std::string_view bytes);
  void message(std::string_view kind, std::span<const std::byte> bytes);

  /// True once the job is to end now, or the launcher is gone: whatever waits should give up. It stays true.
  [[nodiscard]] const std::atomic<bool>& aborted() const noexcept;
  [[nodiscard]] std::string abort_reason() const;

  /// What to do then, once: called on the connection's own thread, or here where the job is aborted already. It must be
  /// quick, throw nothing and call nothing of this object that waits. Replaces the callback given before, and waits
  /// while that is running. An empty one only removes it.
  void on_abort(std::function<void(const std::string& reason)> callback);

  /// The signal that asks for an orderly stop (SIGINT, SIGTERM, SIGHUP), or 0.
  [[nodiscard]] int stop_signal() const noexcept;

  /// Whether all ranks are asked to stand still for a while (Ctrl-Z). Each then calls pause() once, all at the same
  /// point of their work and with nothing under way between them; it returns when all go on. Throws Error{aborted}.
  [[nodiscard]] bool pause_asked() const noexcept;
  void pause();

  /// Tells the launcher why this rank is about to end, and waits until it knows, and, after a consequence, has aborted
  /// the job; until the connection is gone, or 2 s have passed. Other ranks should not notice this one's end before.
  /// Where the job is aborted already it is a consequence, whatever `kind` says. `awaited`: the rank that it waited for
  /// in vain, which is then named before it. Returns whether it is known there: if not, nobody else will tell of it.
  bool fail(FailureKind kind, std::string_view text, std::optional<int> awaited = std::nullopt) noexcept;

  /// The last thing that a rank does: waits until the launcher has read everything that was sent before, and leaves
  /// the job. An abort that comes later is no longer this rank's. Throws Error{aborted} where the job is aborted
  /// before that, Error{io} when `deadline` passes.
  void goodbye(Deadline deadline);

  /// After goodbye: waits until the launcher has ended the connection, when it needs no other rank any more, or
  /// `deadline`.
  void await_end(Deadline deadline) noexcept;

 private:
  void learn_world();

  RankContext context_;
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace shardrun::launch
