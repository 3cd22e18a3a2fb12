#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/options/options.h"
#include "plugins/loader/plugin.h"

namespace shardrun::plugins {

struct TransportState;

/// shardrun/transport.h as plain values. The meaning of every field is stated there; numbers are the header's own.

struct TransportProps {
  bool same_host_only = false;
  bool own_launcher_only = false;  ///< opens in ranks that a launcher of its own started, and in no others
  bool moves_host_memory = false;
};

/// A buffer of host memory, unless it says otherwise.
struct HostBuffer {
  void* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t registration = 0;
  std::uint32_t kind = 1;  ///< SR_MEMORY_...
  std::uint32_t device = 0;
};

struct OpRequest {
  std::uint32_t opcode = 0;
  std::uint32_t dtype = 0;
  std::uint32_t reduction = 0;
  std::uint32_t peer = 0;
  std::uint32_t flags = 0;
  std::uint64_t id = 0;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> send_counts;
  std::vector<std::uint64_t> recv_counts;
  std::optional<HostBuffer> send;
  std::optional<HostBuffer> recv;
  std::optional<HostBuffer> scratch;  ///< without it, an op that needs some brings its own memory
  std::string label;
  /// Of what reduces: in the order of the members, ((0 + 1) + 2) + …; the same bits over every transport. Where the
  /// transport does not, it is made of its sends and receives.
  bool in_order = false;
};

struct OpInfo {
  std::uint32_t flags = 0;
  std::uint64_t scratch_bytes = 0;
};

/// What a transport is lent; it outlives the transport. Every function may be called by any thread.
class TransportHost {
 public:
  TransportHost() = default;
  TransportHost(const TransportHost&) = delete;
  TransportHost& operator=(const TransportHost&) = delete;
  virtual ~TransportHost() = default;

  /// Whether the job is to end.
  [[nodiscard]] virtual bool aborted() const noexcept = 0;
  /// A store shared by all ranks. Both throw Error; `get` waits until the key is set, at most until `deadline`.
  virtual void store_set(const std::string& key, std::string value) = 0;
  [[nodiscard]] virtual std::string store_get(const std::string& key, std::int64_t deadline) = 0;
};

struct TransportConfig {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t local_rank = 0;
  std::uint32_t local_world_size = 1;
  std::string job;       ///< of this run alone: [a-z0-9]+
  std::string address;   ///< that listeners bind to
  OptionValues options;  ///< of one that was not configured
  std::int64_t deadline = INT64_MAX;
  std::vector<std::uint32_t> machines = {};  ///< of each rank the number of its machine; empty: not known
  /// The same on every rank of this run and known to nobody else; nothing: the transport is given none.
  std::optional<std::array<std::uint8_t, 32>> secret = std::nullopt;
};

/// What is known of a job before any of its processes runs.
struct TransportSetup {
  OptionValues options;
  std::uint32_t world_size = 0;  ///< 0: not known
  /// What the job says to a transport that this one opens.
  std::function<OptionValues(const std::string& name)> options_of = {};
};

/// Nanoseconds of the clock of all deadlines.
[[nodiscard]] std::int64_t transport_clock() noexcept;

/// When an op's latest run was under way: when the transport began to work on it, and when it was complete.
struct OpTimes {
  std::int64_t begun = 0;
  std::int64_t ended = 0;
};

/// A prepared op. start and wait allocate nothing where all goes well. Freed with the object.
class TransportOp {
 public:
  TransportOp(TransportOp&& other) noexcept;
  TransportOp& operator=(TransportOp&& other) noexcept;
  ~TransportOp();

  // Each throws Error{timeout, aborted, peer_lost, plugin}.
  void start(std::int64_t deadline);
  [[nodiscard]] bool test();
  /// False where `deadline` passed before; the op goes on.
  [[nodiscard]] bool wait(std::int64_t deadline);
  /// Of a complete op; nothing where the transport does not say. Allocates nothing where it does.
  [[nodiscard]] std::optional<OpTimes> times();

  struct State;

 private:
  friend class TransportGroup;
  explicit TransportOp(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct GroupRequest {
  std::string name;
  std::uint64_t id = 0;
  std::uint32_t rank = 0;  ///< index into `members`
  std::vector<std::uint32_t> members;
  std::int64_t deadline = INT64_MAX;
};

/// Some of the ranks. Its ids are below 2^63. Ops keep it.
class TransportGroup {
 public:
  TransportGroup(TransportGroup&& other) noexcept;
  TransportGroup& operator=(TransportGroup&& other) noexcept;
  ~TransportGroup();

  /// One collective, or sends and receives as one unit; all but the buffers is copied. A collective waits for the other
  /// members. The first one that the transport lacks connects a second group of these members, so collectives are
  /// prepared as groups are connected: by one thread at a time, in one order on all ranks. Throws Error, also where
  /// members prepare different ops.
  [[nodiscard]] TransportOp prepare(const std::vector<OpRequest>& ops, std::int64_t deadline);
  /// Any thread. Never throws: what cannot be aborted has failed already.
  void abort(const std::string& reason) noexcept;
  /// Why the group failed, or nothing. Any thread.
  [[nodiscard]] std::optional<std::string> error() const;

  struct State;

 private:
  friend class Transport;
  explicit TransportGroup(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

/// A transport plugin. Movable. Closed, and its memory deregistered, with the last of this object and its groups and
/// ops; until then the host and the registered memory are there.
class Transport {
 public:
  /// Finds, loads and opens the plugin; no rank is contacted yet. Throws Error{plugin}.
  [[nodiscard]] static Transport load(const Directories& directories, std::string_view name, LogSink log = {});

  Transport(Transport&& other) noexcept;
  Transport& operator=(Transport&& other) noexcept;
  ~Transport();

  [[nodiscard]] const Manifest& manifest() const noexcept;
  [[nodiscard]] const std::vector<OptionSpec>& options() const noexcept;
  /// Gives it the job's options, once, before all that follows; without, it has their defaults. Throws
  /// Error{transport} for what it refuses.
  void configure(TransportSetup setup);
  [[nodiscard]] TransportProps props() const;
  /// What an op takes in a group of `members`; buffers may lack their data. Every collective is available: what the
  /// transport does not offer is made of its sends and receives. Throws Error where it cannot be.
  [[nodiscard]] OpInfo query(const OpRequest& op, std::uint32_t members) const;

  /// Whether ranks that another launcher started can hear from rank 0 through it where they meet.
  [[nodiscard]] bool shares_first() const noexcept;
  /// Before `open`: `bytes`, at most 4096 and as many on every rank, become rank 0's. Waits for all ranks. False where
  /// it cannot after all, as one that opens another which cannot.
  [[nodiscard]] bool share_first(std::uint32_t rank, std::uint32_t world_size, std::string& bytes);
  void open(const TransportConfig& config, TransportHost& host);
  /// `descriptor`: of the memory's file, or -1.
  [[nodiscard]] std::uint64_t register_memory(void* data, std::uint64_t bytes, int descriptor);
  [[nodiscard]] TransportGroup group(const GroupRequest& request);
  [[nodiscard]] std::uint64_t wire_bytes() const;

 private:
  explicit Transport(std::shared_ptr<TransportState> state);
  std::shared_ptr<TransportState> state_;
};

}  // namespace shardrun::plugins
