#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/collectives/rendezvous.h"
#include "plugins/loader/transport.h"

namespace shardrun::bench {

enum class Kind { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv };

[[nodiscard]] std::string_view name_of(Kind kind) noexcept;

/// One rank's part of an op, which all contestants run on the same float32 buffers. send_recv sends to the next rank
/// and receives from the previous one.
struct Exercise {
  Kind kind = Kind::all_reduce;
  bool in_place = false;
  /// Elements of a buffer (all_reduce, broadcast, send_recv) or of a rank's block (other ops).
  std::uint64_t count = 0;
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  float* send = nullptr;
  float* recv = nullptr;

  [[nodiscard]] std::uint64_t sent() const noexcept;  ///< elements that this rank sends
  [[nodiscard]] std::uint64_t received() const noexcept;
  [[nodiscard]] std::uint32_t next() const noexcept { return (rank + 1) % size; }
  [[nodiscard]] std::uint32_t previous() const noexcept { return (rank + size - 1) % size; }
};

/// Runs the exercise once.
using Run = std::function<void()>;

class Contestant {
 public:
  explicit Contestant(std::string name) : name_(std::move(name)) {}
  Contestant(const Contestant&) = delete;
  Contestant& operator=(const Contestant&) = delete;
  virtual ~Contestant() = default;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Whether it is a transport of shardrun, with which the others are compared.
  [[nodiscard]] virtual bool is_ours() const noexcept { return false; }
  /// Whether it is a ceiling: it may do less than the exercise, so its results are not checked.
  [[nodiscard]] virtual bool is_ceiling() const noexcept { return false; }
  /// Returns a function that runs the exercise; empty if the contestant lacks the op. All ranks must call it.
  [[nodiscard]] virtual Run prepare(const Exercise& exercise) = 0;

 private:
  std::string name_;
};

/// The contestants, in the same order on every rank.
using Contestants = std::vector<std::unique_ptr<Contestant>>;

/// A transport plugin in `folder`. `name`: NAME[:KEY=VALUE]... `is_ours`:
/// whether other contestants are compared with it.
[[nodiscard]] std::unique_ptr<Contestant> make_transport(Rendezvous& rendezvous, const device::HostMemory& arena,
                                                         const std::string& folder, const std::string& name,
                                                         bool is_ours);
/// Nanoseconds to start and wait for an op in a group of one rank: the cost of the calls themselves.
[[nodiscard]] double call_overhead(Contestant& transport);

[[nodiscard]] std::unique_ptr<Contestant> make_gloo(Rendezvous& rendezvous);
/// A ceiling: each rank reduces its share of all ranks' buffers into all of them, without ever waiting for others.
[[nodiscard]] std::unique_ptr<Contestant> make_bare_reduction(const Arenas& arenas);
[[nodiscard]] std::unique_ptr<Contestant> make_memcpy();

/// The MPI that this program was built with; null if it was built without.
[[nodiscard]] std::unique_ptr<Contestant> make_mpi();
/// Rank and size, if MPI started this process.
struct Started {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
};
[[nodiscard]] std::optional<Started> start_mpi();
void end_mpi();

}  // namespace shardrun::bench
