#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/partition/partition.h"
#include "core/runtime/executor.h"

namespace shardrun::runtime {

/// An error to plant in one transfer, on one rank and the ranks that take part in the transfer. Transfers are numbered
/// in order, through all programs of a rank.
struct Fault {
  enum class Kind {
    omit,   ///< nothing is moved: receive buffers become zero, data in place stays
    swap,   ///< blocks of the first two members are exchanged; in an all_reduce, the first's part counts twice
    scale,  ///< received values are too large by 1/64
  } kind = Kind::omit;
  std::size_t transfer = 0;
  std::size_t rank = 0;
};

/// Runs all ranks' programs in one process, over the same instructions. Each rank runs until it waits for another; then
/// the next rank runs. It is slow and its order is fixed, so that results can be compared and faults planted.
class Interpreter {
 public:
  /// `hooks`: as for Executor.
  Interpreter(const graph::Graph& graph, const partition::Partition& partition, const device::Device& device,
              int threads, std::optional<Fault> fault = std::nullopt, const plugins::Hooks* hooks = nullptr);
  ~Interpreter();

  [[nodiscard]] std::size_t ranks() const noexcept { return executors_.size(); }
  [[nodiscard]] Executor& rank(std::size_t rank) { return *executors_[rank]; }
  [[nodiscard]] const partition::Programs& programs(std::size_t rank) const { return programs_[rank]; }
  /// The number of transfers in all programs of a rank, in each of which a fault can be planted.
  [[nodiscard]] std::size_t transfers(std::size_t rank = 0) const noexcept;

  /// Runs one call of a function on every rank, or all calls that an execution of its program covers. On a deadlock
  /// throws Error{internal}, which says what each rank waits for.
  void run(std::string_view function, std::int64_t rows, bool last, const device::Scalars& scalars);
  void run(std::size_t program, std::span<const device::Scalars> scalars);

 private:
  [[noreturn]] void refuse(std::size_t program, const std::vector<std::size_t>& at) const;

  class Exchange;
  class Member;

  std::vector<partition::Programs> programs_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

}  // namespace shardrun::runtime
