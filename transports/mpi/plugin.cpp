#include <shardrun/sdk/transport.hpp>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transports/mpi/group.h"
#include "transports/mpi/library.h"

namespace {

using namespace shardrun::sdk;
using shardrun::mpi_transport::Library;
using shardrun::mpi_transport::MpiGroup;

/// The default number of communicators of a group. A process can have as many as memory allows with Open MPI, and about
/// two thousand with MPICH and its derivatives.
#ifdef OPEN_MPI
constexpr std::int64_t usual_communicators = 1000;
#else
constexpr std::int64_t usual_communicators = 64;
#endif

/// Uses the MPI library that a cluster already has: its collectives, between ranks that its launcher started.
class Mpi {
 public:
  static Props props() { return {.flags = SR_TRANSPORT_OWN_LAUNCHER}; }
  static std::vector<Option> options() {
    return {integer_option("communicators", usual_communicators, 0, 1000,
                           "of each group, one for each collective that is prepared; further ones share one")};
  }

  /// Says which ops MPI computes. Nothing for ops whose counts are larger than an int. The host makes these of sends
  /// and receives, and also sums and products without SR_OP_INFO_ROUNDED_ONCE, which MPI would round in between.
  static std::optional<OpInfo> query(const OpSpec& op, std::uint32_t n) {
    OpInfo info{.flags = SR_OP_INFO_NATIVE | SR_OP_INFO_ASYNC};
    if (!find_opcode(op.opcode)->collective) {
      info.flags = SR_OP_INFO_ASYNC;
      return info;
    }
    if (find_opcode(op.opcode)->reduces && !has_wide_partials(op, n)) {
      info.flags |= SR_OP_INFO_ROUNDED_ONCE;
    }
    const bool is_alike = op.opcode != SR_OP_ALL_TO_ALLV;  // for these ops every member's counts are known
    const std::uint64_t elements = std::max(op.count * n, is_alike ? detail::sum(op.recv_counts) : 0);
    if (elements > INT_MAX) {
      return std::nullopt;
    }
    if (op.opcode == SR_OP_REDUCE_SCATTER) {
      info.scratch_bytes = op.count * dtype_size(op.dtype);
    } else if (op.opcode == SR_OP_REDUCE_SCATTERV) {
      info.scratch_bytes = *std::max_element(op.recv_counts.begin(), op.recv_counts.end()) * dtype_size(op.dtype);
    }
    return info;
  }

  void share_first(std::uint32_t rank, std::uint32_t world_size, std::span<std::byte> data) {
    Library& library = Library::instance();
    library.start(rank, world_size);
    const auto locked = library.lock();
    Library::check(MPI_Bcast(data.data(), static_cast<int>(data.size()), MPI_BYTE, 0, library.world()), "MPI_Bcast");
  }

  void open(const Config& config) {
    Library::instance().start(config.rank, config.world_size);
    config_ = config;
  }
  void close() {}

  [[nodiscard]] std::uint64_t wire_bytes() const { return wire_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t mem_register(const sr_memory&) { return ++registrations_; }
  void mem_deregister(std::uint64_t) {}

  std::unique_ptr<Group> group(const GroupSpec& spec) {
    if (spec.size() == 1) {
      return std::make_unique<LoneGroup>();
    }
    // A key of the store can be set only once, so a group that is made again needs another key.
    std::string key = "mpi/" + std::to_string(spec.id) + "/" + std::to_string(generations_[{spec.id, spec.members}]++);
    for (const std::uint32_t member : spec.members) {
      key += "/" + std::to_string(member);
    }
    const auto comms = static_cast<std::size_t>(config_.options.integer("communicators"));
    return std::make_unique<MpiGroup>(config_, spec, key, comms, wire_bytes_);
  }

 private:
  Config config_;
  std::atomic<std::uint64_t> wire_bytes_ = 0;
  std::uint64_t registrations_ = 0;
  std::map<std::pair<std::uint64_t, std::vector<std::uint32_t>>, std::uint64_t> generations_;
};

}  // namespace

SHARDRUN_EXPORT_TRANSPORT(Mpi, "mpi", "1.0", "openmpi mpich mpi4py ucx ucc infiniband")
