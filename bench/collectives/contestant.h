#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/collectives/meeting.h"
#include "plugins/loader/transport.h"

namespace shardrun::bench {

enum class Kind { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv };

[[nodiscard]] std::string_view name_of(Kind kind) noexcept;

/// What all contestants are to do with the same buffers of float32: one rank's view of it.
/// send_recv: to the next rank, and from the one before.
struct Exercise {
  Kind kind = Kind::all_reduce;
  bool in_place = false;
  std::uint64_t count = 0;  ///< all_reduce, broadcast, send_recv: elements of a buffer; else of a rank's block
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  float* send = nullptr;
  float* recv = nullptr;

  [[nodiscard]] std::uint64_t sent() const noexcept;  ///< elements
  [[nodiscard]] std::uint64_t received() const noexcept;
  [[nodiscard]] std::uint32_t next() const noexcept { return (rank + 1) % size; }
  [[nodiscard]] std::uint32_t previous() const noexcept { return (rank + size - 1) % size; }
};

/// Carries an exercise out once.
using Run = std::function<void()>;

class Contestant {
 public:
  explicit Contestant(std::string name) : name_(std::move(name)) {}
  Contestant(const Contestant&) = delete;
  Contestant& operator=(const Contestant&) = delete;
  virtual ~Contestant() = default;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Whether it is one of the transports, which the others are the measure of.
  [[nodiscard]] virtual bool is_ours() const noexcept { return false; }
  /// A ceiling, which may do less than the exercise asks for: not checked.
  [[nodiscard]] virtual bool is_ceiling() const noexcept { return false; }
  /// Called by all ranks. Nothing where it has no such op.
  [[nodiscard]] virtual Run prepare(const Exercise& exercise) = 0;

 private:
  std::string name_;
};

/// Every rank has them in the same order.
using Contestants = std::vector<std::unique_ptr<Contestant>>;

/// A transport plugin, found in `folder`: NAME[:KEY=VALUE]... `is_ours`: others are its measure; else it is a measure.
[[nodiscard]] std::unique_ptr<Contestant> make_transport(Meeting& meeting, const memory::Arena& arena,
                                                         const std::string& folder, const std::string& name,
                                                         bool is_ours);
/// Nanoseconds that starting and waiting for an op take in a group of one: what a call costs.
[[nodiscard]] double call_overhead(Contestant& transport);

[[nodiscard]] std::unique_ptr<Contestant> make_gloo(Meeting& meeting);
/// Each rank reduces its share of all ranks' buffers into all of them, and never waits for anyone.
[[nodiscard]] std::unique_ptr<Contestant> make_bare_reduction(const Arenas& arenas);
[[nodiscard]] std::unique_ptr<Contestant> make_memcpy();

/// Open MPI, or whichever MPI this was built with. Null where there was none.
[[nodiscard]] std::unique_ptr<Contestant> make_mpi();
/// Rank and size, where an MPI started this process.
struct Started {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
};
[[nodiscard]] std::optional<Started> start_mpi();
void end_mpi();

}  // namespace shardrun::bench
