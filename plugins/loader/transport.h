#pragma once

#include <shardrun/sdk/transport/group.hpp>

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

class TransportQueue;
struct TransportState;

/// Bytes of the hashes that a member sends with an op over a transport whose messages are checked.
[[nodiscard]] std::uint64_t hash_bytes(const sdk::OpSpec& op, std::uint32_t member, std::uint32_t members);

/// Functions that the host provides to a transport. The object outlives the transport. Any thread may call them.
class TransportHost {
 public:
  TransportHost() = default;
  TransportHost(const TransportHost&) = delete;
  TransportHost& operator=(const TransportHost&) = delete;
  virtual ~TransportHost() = default;

  /// Whether the job is ending.
  [[nodiscard]] virtual bool aborted() const noexcept = 0;
  /// A store that all ranks share. Both functions throw Error. `get` waits until the key is set, at most until
  /// `deadline`, a time of transport_clock().
  virtual void store_set(const std::string& key, std::string value) = 0;
  [[nodiscard]] virtual std::string store_get(const std::string& key, std::int64_t deadline) = 0;
};

/// What is known of a job before any of its processes runs.
struct TransportSetup {
  OptionValues options;
  std::uint32_t world_size = 0;  ///< 0: not known
  /// Returns the job's options for a transport that this one opens.
  std::function<OptionValues(const std::string& name)> options_of = {};
  /// With this, every message carries a hash of its bytes, which its receiver compares. All ops, also collectives, are
  /// then made of sends and receives in host memory, so that each message has one sender and one receiver.
  bool checked = false;
};

/// Nanoseconds of CLOCK_MONOTONIC: the clock of deadlines that are plain numbers, as in shardrun/transport.h.
[[nodiscard]] std::int64_t transport_clock() noexcept;

/// A prepared op. start and wait allocate nothing unless they fail. The op is freed with the object.
class TransportOp {
 public:
  TransportOp(TransportOp&& other) noexcept;
  TransportOp& operator=(TransportOp&& other) noexcept;
  ~TransportOp();

  // The following throw Error{timeout, aborted, peer_lost, transport}.
  void start(std::int64_t deadline);
  /// Starts the op in a queue: see sr_transport::op_enqueue. If the transport does not support host queues, a thread of
  /// this process starts the op when the queue has reached it. Queues of other kinds need a transport that supports
  /// them. The queue outlives the op.
  /// A group's ops that the transport offers begin in the order of their starts, and so do those that are composed of
  /// sends and receives. An op of one sort does not wait for one of the other.
  /// `timeout`: nanoseconds after the queue has reached the op.
  /// REQUIRES, the first time in a group: all of its ops are prepared, and none is in progress.
  void enqueue(const TransportQueue& queue, std::int64_t timeout);
  /// Makes the queue wait for the op, without making the host wait: see sr_transport::op_join. The rules for queues are
  /// those of enqueue().
  void join(const TransportQueue& queue);
  [[nodiscard]] bool test();
  /// Returns false if `deadline` passed first; the op continues.
  [[nodiscard]] bool wait(std::int64_t deadline);
  /// The times of a complete op. Nothing if they are not known. Allocates nothing if they are.
  [[nodiscard]] std::optional<sdk::OpTimes> times();

  struct State;

 private:
  friend class TransportGroup;
  explicit TransportOp(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// A group of ranks. Ops keep it alive.
class TransportGroup {
 public:
  TransportGroup(TransportGroup&& other) noexcept;
  TransportGroup& operator=(TransportGroup&& other) noexcept;
  ~TransportGroup();

  /// Prepares one collective, or sends and receives as one op. Copies everything except the buffers. If an op in host
  /// memory needs scratch and has none, the loader provides it. A collective waits for the other members. The first
  /// collective that the transport lacks connects a second group of these members. So collectives are prepared like
  /// groups are connected: by one thread at a time, in the same order on all ranks. Throws Error, also if members
  /// prepare different ops.
  [[nodiscard]] TransportOp prepare(const std::vector<sdk::OpSpec>& ops, std::int64_t deadline);
  /// Aborts the group. Any thread may call it. Never throws: a group that cannot be aborted has failed already.
  void abort(const std::string& reason) noexcept;
  /// Why the group failed; nothing if it has not failed. Any thread may call it.
  [[nodiscard]] std::optional<std::string> error() const;

  struct State;

 private:
  friend class Transport;
  explicit TransportGroup(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

/// A transport plugin. Movable. It is closed, and its memory deregistered, with the last of this object, its groups and
/// its ops. The host and the registered memory must exist until then.
class Transport {
 public:
  /// Finds, loads and opens the plugin. Does not contact other ranks. Throws Error{plugin}.
  [[nodiscard]] static Transport load(const Directories& directories, std::string_view name, LogSink log = {});

  Transport(Transport&& other) noexcept;
  Transport& operator=(Transport&& other) noexcept;
  ~Transport();

  [[nodiscard]] const Manifest& manifest() const noexcept;
  [[nodiscard]] const std::vector<OptionSpec>& options() const noexcept;
  /// Passes the job's options, once, before all calls below. Without this call the defaults apply. Throws
  /// Error{transport} if the transport refuses the options.
  void configure(TransportSetup setup);
  [[nodiscard]] sdk::Props props() const;
  /// What an op needs in a group of `members`. Its buffers need no data. Every collective in host memory is available.
  /// If the transport lacks it, or does not run it in the order that SR_OP_FLAG_IN_ORDER asks for, it is made of sends
  /// and receives. Throws Error for an invalid op, and for one in device memory that the transport does not run.
  [[nodiscard]] sdk::OpInfo query(const sdk::OpSpec& op, std::uint32_t members) const;

  /// Whether ranks that another launcher started can use the transport to learn where rank 0 is.
  [[nodiscard]] bool shares_first() const noexcept;
  /// Waits until all ranks have called it, and sets `bytes` (at most 4096, the same number on each rank) to rank 0's.
  /// Returns false if a transport that this one wraps cannot do it. Throws Error. REQUIRES: shares_first(), not open.
  [[nodiscard]] bool share_first(std::uint32_t rank, std::uint32_t world_size, std::string& bytes);
  /// Opens the transport. Fills in the options and the host of `config`. Throws Error, like the following.
  void open(sdk::Config config, TransportHost& host);
  /// `descriptor`: that of the memory's file, or -1. `kind`: SR_MEMORY_..., host memory by default; `device`: the
  /// device of CUDA memory.
  [[nodiscard]] std::uint64_t register_memory(void* data, std::uint64_t bytes, int descriptor, std::uint32_t kind = 1,
                                              std::uint32_t device = 0);
  /// Connects a group, and can wait for the other members. REQUIRES: the id is below 2^63.
  [[nodiscard]] TransportGroup group(const sdk::GroupSpec& spec);
  [[nodiscard]] std::uint64_t wire_bytes() const;
  /// See sr_transport::arrivals; no bytes if that is not known.
  [[nodiscard]] sdk::Arrivals arrivals(std::uint32_t rank) const;

 private:
  explicit Transport(std::shared_ptr<TransportState> state);
  std::shared_ptr<TransportState> state_;
};

}  // namespace shardrun::plugins
