#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/partition/program.h"

namespace shardrun::runtime {

/// Carries out the transfers of one rank's programs. Used by the thread that runs them.
class Communicator {
 public:
  using Handle = std::size_t;

  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  /// Where a transfer's data lies. Its memory stays where it is.
  struct Place {
    void* send = nullptr;
    std::uint64_t send_bytes = 0;
    void* recv = nullptr;
    std::uint64_t recv_bytes = 0;
    void* scratch = nullptr;
    std::uint64_t scratch_bytes = 0;
    std::size_t element_bytes = 4;
  };

  /// Once for each transfer of each program, before anything is started; in one order on all ranks.
  /// `waited_at_once`: nothing is computed between its start and its wait.
  [[nodiscard]] virtual Handle prepare(const partition::Transfer& transfer, const Place& place,
                                       bool waited_at_once) = 0;
  virtual void start(Handle transfer) = 0;
  /// Whether it is complete.
  [[nodiscard]] virtual bool test(Handle transfer) = 0;
  virtual void wait(Handle transfer) = 0;
  /// When a transfer's latest run was under way; nothing where it has not been waited for, or the transport does not
  /// say.
  struct Times {
    std::int64_t begun = 0;  ///< nanoseconds of the monotonic clock
    std::int64_t ended = 0;
  };
  [[nodiscard]] virtual std::optional<Times> times(Handle /*transfer*/) const { return std::nullopt; }
  /// How long this rank has started transfers and waited for them so far, and did nothing else.
  [[nodiscard]] virtual double exposed_seconds() const noexcept { return 0; }
  /// How long transfers have at least been under way so far while this rank did something else than start transfers and
  /// wait for them; what was under way at the same time counts each. 0 of transports that do not say when.
  [[nodiscard]] virtual double hidden_seconds() const noexcept { return 0; }
};

}  // namespace shardrun::runtime
