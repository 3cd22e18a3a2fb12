#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/compile/compile.h"
#include "core/job/job.h"
#include "core/launch/rank.h"
#include "core/runtime/collectives.h"
#include "core/runtime/executor.h"
#include "core/runtime/flight_recorder.h"

namespace shardrun::train {

// The ranks' flight records, in a folder of the run's output. They are binary while the job runs, and are converted to
// text if it fails.

/// The path of a rank's own record. Makes the folder if it is missing. Throws Error{io}.
[[nodiscard]] std::filesystem::path new_flight_path(const std::filesystem::path& output, int rank);

/// Removes the folder, when a job has ended without failure.
void drop_flights(const std::filesystem::path& output) noexcept;

/// Writes every record as flight/rank-N.jsonl. Call it when a job has failed and all ranks have ended. Returns lines
/// for the report, each with a leading line break. They say what the failed rank (`cause`) was doing, who waits for
/// whom, and where the records are.
[[nodiscard]] std::string tell_flights(const std::filesystem::path& output, int ranks, int cause);

/// What a rank asks for between two steps, or what all ranks have agreed on.
struct Wish {
  int signal = 0;       ///< the signal that asked to stop; 0: none
  bool save = false;    ///< a checkpoint is due
  bool pause = false;   ///< the job is to be suspended
  bool report = false;  ///< all ranks are to report their times
};

/// Stands for [job] time_limit among the signals that stop a run.
inline constexpr int time_limit_signal = SIGXCPU;

/// The times from which this rank asks the others to end the run, to save a checkpoint, or to report their times.
struct Due {
  using Clock = std::chrono::steady_clock;

  Clock::time_point end = Clock::time_point::max();   ///< by [job] time_limit
  Clock::time_point save = Clock::time_point::max();  ///< by [checkpoint] minutes
  Clock::time_point report = Clock::time_point::max();

  [[nodiscard]] Wish wish() const noexcept {
    const Clock::time_point now = Clock::now();
    return {.signal = now >= end ? time_limit_signal : 0, .save = now >= save, .report = now >= report};
  }
};

/// This process as one of a job's ranks: its transports, which use the launcher's store, and agreements between the
/// ranks. A rank without a launcher has neither store nor transports, and agrees with itself. The destructor destroys
/// ops, groups and transports, in this order, and then releases the memory that they knew.
class RankLink final : private plugins::TransportHost {
 public:
  /// `rank` has joined; null for the only rank of a job without a launcher. The three references outlive this object.
  /// `stop_signal` returns the signal that asked this process to stop, or 0; it is empty if only the launcher is asked.
  /// It is called on any thread, at any time, so it must not wait or call a device.
  RankLink(const job::Job& job, compile::Compiled& compiled, launch::Rank* rank, std::function<int()> stop_signal = {});
  ~RankLink() override;

  /// Compares this rank's input files with the first rank's. Throws Error{io} if one differs.
  void check_data();
  /// Compares graph and plan, or an engine's parameters, with the first rank's. Throws Error{internal} if they differ.
  void check_plan();
  /// Compares the answers of the plan's hooks with those on the first rank along their mesh axis. Throws
  /// Error{internal} if they differ.
  void check_hooks();
  /// Opens the transports, connects the ranks and prepares every transfer of the executor's programs. It first waits,
  /// without a limit, for ranks that still load data; from then on [job] timeout counts. The executor can be destroyed
  /// before this object. No more agreements are possible then, but its memory stays while transports know it.
  void connect(runtime::Executor& executor);

  /// The job. All ranks have the same `output` folder.
  [[nodiscard]] const job::Job& job() const noexcept { return job_; }
  [[nodiscard]] int rank() const noexcept { return rank_ == nullptr ? 0 : rank_->rank(); }
  [[nodiscard]] int world_size() const noexcept { return rank_ == nullptr ? 1 : rank_->world_size(); }
  /// Whether a launcher other than shardrun started the ranks.
  [[nodiscard]] bool is_hosted() const noexcept { return rank_ != nullptr && rank_->context().is_hosted; }
  /// Returns the largest of the ranks' values to all ranks. Every rank calls it at the same point. Throws
  /// Error{transport} if the result is less than this rank's value or more than `most`: then it was changed in transit.
  [[nodiscard]] std::int32_t agree(std::int32_t value, std::int32_t most);
  /// The first rank makes one text from all ranks' texts, in order of rank, and all ranks get it. Every rank calls it
  /// at the same point, once per name. [job] timeout is the deadline.
  [[nodiscard]] std::string made_of_all(
      std::string_view name, const std::string& given,
      const std::function<std::string(const std::vector<std::string>& of_ranks)>& make);
  /// Returns what any rank asks for: a signal to stop, a checkpoint, reports. All ranks get the same. Every rank calls
  /// it at the same point. Waits while the job is suspended. `wish`: what this rank asks for. Throws as agree() does.
  [[nodiscard]] Wish agree_on_stop(Wish wish = {});
  /// agree_on_stop() in two parts. begin_agreement() enqueues the agreement after a step, counted from 0, on the
  /// device. The device reads this rank's wish when its earlier work is done. end_agreement() waits for the result, and
  /// does not pause. At most two agreements are in flight. REQUIRES: the host cannot address the device's memory.
  void begin_agreement(std::int64_t step, const Due& due);
  [[nodiscard]] Wish end_agreement(std::int64_t step);
  /// Waits while the job is suspended.
  void pause() {
    if (rank_ != nullptr) {
      rank_->pause();
    }
  }
  /// Agreements use two of the executor's slots, which hold numbers that are read later. This is the first.
  static constexpr std::size_t first_slot = 6;
  /// Copies the first rank's bytes to all ranks. Every rank calls it at the same point, with as many bytes. REQUIRES:
  /// the transports move memory of the host.
  void broadcast(std::span<std::byte> bytes);
  /// Returns once every rank has called it. There is no deadline, because a rank that computes for long still sends
  /// heartbeats. A rank that ends or sends none ends the job.
  void barrier();

  /// Stores a text for published() on other ranks. Each name is used once. Any thread. Throws Error{aborted}.
  void publish(const std::string& name, const std::string& text) {
    if (rank_ != nullptr) {
      rank_->set(name, text);
    }
  }
  /// Waits for the text of this name. Throws Error{timeout} after `latest`, and Error{aborted}. REQUIRES: other ranks.
  [[nodiscard]] std::string published(const std::string& name, launch::Rank::Deadline latest) {
    return rank_->get(name, latest);
  }

  /// Sets what this rank is doing, for the report of a failure. `step` counts from 1; 0: none.
  void now_at(std::string_view phase, std::int64_t step) noexcept {
    if (record_) {
      record_->set_phase(phase, step);
    }
  }

  /// Removes the record, which is not needed once this rank has ended well. REQUIRES: there is a launcher.
  void drop_record() noexcept { record_->remove(); }

  /// Null without a launcher. REQUIRES: connect() was called.
  [[nodiscard]] runtime::Collectives* collectives() noexcept { return collectives_.get(); }

  /// Sends the launcher a message. REQUIRES: there is a launcher.
  void message(std::string_view kind, std::string_view bytes) { rank_->message(kind, bytes); }
  /// Bytes that the transports have sent to others so far.
  [[nodiscard]] std::uint64_t wire_bytes() const;
  /// The long messages that came in from another rank so far, summed over the transports that count them. Zero for a
  /// rank on this machine if there are ranks on others: links within a machine are too fast to be compared with a
  /// network. REQUIRES: there are other ranks.
  [[nodiscard]] sdk::Arrivals arrivals(int from) const;

 private:
  [[nodiscard]] bool aborted() const noexcept override { return rank_->aborted().load(std::memory_order_relaxed); }
  void store_set(const std::string& key, std::string value) override { rank_->set(key, value); }
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t deadline) override;

  [[nodiscard]] launch::Rank::Deadline deadline() const;
  /// This rank's wish as a number. In an agreement on stopping, the largest number of all ranks counts.
  [[nodiscard]] std::int32_t number_of(const Wish& wish) const;
  /// The reverse of number_of(). Throws Error{transport} for a number that no rank can have given.
  [[nodiscard]] Wish wish_of(std::int32_t agreed) const;
  [[noreturn]] void refuse_changed(std::int32_t agreed, std::string_view possible) const;
  /// An agreement whose result is read later.
  struct LateAgreement {
    RankLink* link = nullptr;
    Due due;
    std::byte* number = nullptr;  ///< in the executor's slot
    device::Event agreed;         ///< marks the agreement's end

    void give() const noexcept;  ///< writes what this rank asks for; any thread may call it
  };

  /// Throws Error{internal} unless a plugin, `maker`, made the same `what` from the job as on the first rank.
  void check_made(const std::string& what, std::string_view maker, std::string_view text);
  /// Compares this rank's fingerprint of a file with the first rank's.
  void check_file(const std::string& key, std::string_view setting, const std::filesystem::path& file,
                  const std::string& fingerprint);

  const job::Job& job_;
  compile::Compiled& compiled_;
  launch::Rank* rank_;
  std::function<int()> own_stop_signal_;
  std::optional<runtime::FlightRecorder> record_;  ///< nothing without a launcher
  runtime::TransportMemory memory_;                ///< the memory that the transports know
  std::unique_ptr<runtime::Collectives> collectives_;
  runtime::Executor* executor_ = nullptr;  ///< set by connect()
  std::optional<std::size_t> agreement_;   ///< the program of agreements; nothing with one rank
  std::array<LateAgreement, 2> late_;      ///< in flight, by step modulo 2
  int barriers_ = 0;                       ///< number of barriers so far, the same on every rank
};

}  // namespace shardrun::train
