#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <shardrun/sdk/transport.hpp>
#include <shardrun/sdk/worker.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control.h"
#include "mail.h"
#include "memory.h"

namespace shm {

using shardrun::sdk::Buffer;
using shardrun::sdk::OpSpec;
using shardrun::sdk::Worker;

/// Memory of the host, as it was registered.
struct Registration {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  int descriptor = -1;  ///< -1: peers cannot map it
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;  ///< of `data` in the file
};

/// What the groups of one transport share.
struct Shared {
  Config config;
  Peers peers;
  std::map<std::uint64_t, Registration> registrations;
  std::map<std::string, std::uint64_t> generations;  ///< groups made so far, by their name in the store
  std::atomic<std::uint64_t> wire_bytes = 0;
};

/// A buffer where peers can read it: itself, where it lies in memory that they can map, else a copy.
class Exposed {
 public:
  Exposed() = default;
  Exposed(const MemoryRef& ref, std::byte* data, std::shared_ptr<Mapping> copy = nullptr)
      : ref_(ref), data_(data), copy_(std::move(copy)) {}

  [[nodiscard]] const MemoryRef& ref() const noexcept { return ref_; }
  /// Where peers read: the buffer's own memory or the copy's.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] bool is_copy() const noexcept { return copy_ != nullptr; }
  /// Peers have mapped what they read.
  void close_descriptor() noexcept {
    if (copy_ != nullptr) {
      copy_->close_descriptor();
    }
  }

 private:
  MemoryRef ref_;
  std::byte* data_ = nullptr;
  std::shared_ptr<Mapping> copy_;
};

struct ToExpose {
  const Buffer* buffer = nullptr;
  std::uint64_t bytes = 0;  ///< 0: nothing is to be read
};
/// As many; all copies lie in one piece of memory.
[[nodiscard]] std::vector<Exposed> expose(const Shared& shared, std::span<const ToExpose> wanted);

/// What a member brings to a collective.
struct Offer {
  MemoryRef send;
  MemoryRef recv;
  std::size_t place_bytes = 0;
};

/// What a member knows of the others once they have prepared a collective. Entries of its own are empty.
struct Agreed {
  Place place;
  std::vector<std::shared_ptr<std::byte>> sends;  ///< every member's, in this process
  std::vector<std::shared_ptr<std::byte>> recvs;
  std::vector<std::uint64_t> offsets;  ///< all_to_allv: where in a member's send its block for this one begins
};

/// Members on one machine that read each other's memory.
class Group final : public shardrun::sdk::Group {
 public:
  Group(Shared& shared, const GroupSpec& spec);
  ~Group() override = default;

  [[nodiscard]] std::unique_ptr<shardrun::sdk::Op> prepare(std::span<const OpSpec> ops, std::int64_t deadline) override;
  void abort(std::string_view reason) noexcept override { fail(SR_ABORTED, std::string(reason)); }
  [[nodiscard]] std::optional<TransportError> error() override { return worker_.failure(); }

  [[nodiscard]] Control& control() noexcept { return control_; }
  [[nodiscard]] Worker& worker() noexcept { return worker_; }
  [[nodiscard]] Shared& shared() noexcept { return shared_; }
  [[nodiscard]] const std::atomic<bool>& cancelled() const noexcept { return cancelled_; }
  [[nodiscard]] Outbox& outbox(std::uint32_t to) noexcept { return outboxes_[to]; }
  [[nodiscard]] Inbox& inbox(std::uint32_t from) noexcept { return inboxes_[from]; }

  // What Worker says of these, but a task that runs ends itself by its deadline, as it knows for whom it waits. The
  // worker ends, a little later, one that waits its turn.
  void start(Worker::Task& task, std::int64_t deadline) { worker_.start(task, later(deadline)); }
  /// `own`: what it was started with.
  [[nodiscard]] bool wait(Worker::Task& task, std::int64_t own, std::int64_t deadline) {
    return worker_.wait(task, deadline < own ? deadline : later(own));
  }

  void fail(std::int32_t status, const std::string& text) noexcept { worker_.fail(status, text); }
  /// Throws why the group failed, if it has.
  void check();

  /// Memory that a member announced; see Peers. Throws TransportError{SR_PEER_LOST} where its process has ended: what
  /// the kernel answers then depends on who asks and when.
  [[nodiscard]] std::shared_ptr<std::byte> memory_of(std::uint32_t member, const MemoryRef& ref);

  /// Tells the others what this member prepares, and hears what they do: on return, all have mapped what they read.
  /// Throws TransportError{SR_INVALID} on all members where they do not mean the same op.
  [[nodiscard]] Agreed agree(const OpSpec& op, const Offer& offer, std::int64_t deadline);

 private:
  [[nodiscard]] static constexpr std::int64_t later(std::int64_t deadline) noexcept {
    constexpr std::int64_t turn_ns = 500'000'000;
    return deadline > INT64_MAX - turn_ns ? INT64_MAX : deadline + turn_ns;
  }

  /// Waits until all members have called it as often.
  void meet(const OpSpec& op, std::int64_t deadline);
  void tell(const OpSpec& op, const Offer& offer);
  void hear(const OpSpec& op, Agreed& agreed);
  [[nodiscard]] std::optional<std::string> own_difference(const OpSpec& op) const;
  [[nodiscard]] std::optional<std::string> difference_of_others(const OpSpec& op) const;

  Shared& shared_;
  Control control_;
  std::atomic<bool> cancelled_ = false;
  std::uint64_t meetings_ = 0;
  std::vector<Outbox> outboxes_;  ///< to each member
  std::vector<Inbox> inboxes_;    ///< from each member
  Worker worker_;                 // last: its thread uses the rest
};

[[nodiscard]] std::unique_ptr<shardrun::sdk::Op> make_collective(Group& group, const OpSpec& op, std::int64_t deadline);
[[nodiscard]] std::unique_ptr<shardrun::sdk::Op> make_batch(Group& group, std::span<const OpSpec> ops);

}  // namespace shm
