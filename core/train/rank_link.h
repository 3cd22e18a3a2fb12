#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

/// This process as one rank of several: its transports over the launcher's store, and what ranks have to agree on.
/// At its end ops, groups and transports go, in this order, and then its hold on the memory that they knew.
class RankLink final : private plugins::TransportHost {
 public:
  /// `rank` has joined. All three outlive this. `stop_signal`: what has asked this very process to stop, or 0; empty
  /// where the launcher alone is asked.
  RankLink(const job::Job& job, compile::Compiled& compiled, launch::Rank& rank, std::function<int()> stop_signal = {});
  ~RankLink() override;

  /// Compares what this rank starts from with what the first does, file by file. Throws Error{io} where one is another.
  void check_data();
  /// Compares the plan with the first rank's. Throws Error{internal} where a rank has made another.
  void check_plan();
  /// Compares what the plan's hooks do with what they do on the first rank along their mesh axis. Throws likewise.
  void check_hooks();
  /// Opens the transports, connects the ranks and prepares every transfer of the executor's programs. Waits before for
  /// the ranks that are not ready to, however long they load data; from then on [job] timeout counts. The executor may
  /// end before this does: its arena stays for as long as transports know it.
  void connect(runtime::Executor& executor);

  /// With the output folder of all ranks.
  [[nodiscard]] const job::Job& job() const noexcept { return job_; }
  [[nodiscard]] int rank() const noexcept { return rank_.rank(); }
  [[nodiscard]] int world_size() const noexcept { return rank_.world_size(); }
  /// The largest of what the ranks give, to all of them. Every rank calls it at the same point.
  [[nodiscard]] std::int32_t agree(std::int32_t value) { return collectives_->agree(value); }
  /// As Collectives: the largest that the ranks along a mesh axis have of each of these numbers.
  void prepare_maximum(std::span<std::int32_t> values) { collectives_->prepare_maximum(values); }
  void maximum(mesh::AxisId axis) { collectives_->maximum(axis); }
  /// What the first rank makes of what all ranks give, in their order: to all of them. Every rank calls it at the same
  /// point, once for each name; [job] timeout counts.
  [[nodiscard]] std::string made_of_all(
      std::string_view name, const std::string& given,
      const std::function<std::string(const std::vector<std::string>& of_ranks)>& make);
  /// The signal that asked any rank to stop, the same on all ranks; 0: none. Every rank calls it at the same point, and
  /// waits there while the job is to stand still.
  [[nodiscard]] int agree_on_stop();
  /// No rank goes on before each has called it, however long one works before: as long as it does, it sends heartbeats,
  /// and where it ends or falls silent, the job ends.
  void barrier();

  /// What this rank is at, for where the job fails; `step` from 1 on, or 0.
  void now_at(std::string_view phase, std::int64_t step) noexcept { record_.set_phase(phase, step); }

  /// This rank has come to its end: nobody will ask what it was at.
  void drop_record() noexcept { record_.remove(); }

  void message(std::string_view kind, std::string_view bytes) { rank_.message(kind, bytes); }
  /// Bytes that the transports have really given to others so far.
  [[nodiscard]] std::uint64_t wire_bytes() const;

 private:
  [[nodiscard]] bool aborted() const noexcept override { return rank_.aborted().load(std::memory_order_relaxed); }
  void store_set(const std::string& key, std::string value) override { rank_.set(key, value); }
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t deadline) override;

  [[nodiscard]] launch::Rank::Deadline deadline() const;
  /// Compares this rank's fingerprint of a file with the first rank's.
  void check_file(const std::string& key, std::string_view setting, const std::filesystem::path& file,
                  const std::string& fingerprint);

  const job::Job& job_;
  compile::Compiled& compiled_;
  launch::Rank& rank_;
  std::function<int()> own_stop_signal_;
  runtime::FlightRecorder record_;
  std::shared_ptr<const memory::Arena> arena_;  ///< known to the transports
  std::unique_ptr<runtime::Collectives> collectives_;
  int barriers_ = 0;  ///< that this rank has called, and every other too
};

}  // namespace shardrun::train
