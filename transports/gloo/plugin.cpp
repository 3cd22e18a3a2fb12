#include <gloo/transport/tcp/device.h>
#include <shardrun/sdk/transport/agreement.hpp>
#include <shardrun/sdk/transport/collectives.hpp>
#include <shardrun/sdk/transport/lone_group.hpp>
#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "transports/gloo/full_mesh.h"
#include "transports/gloo/one_shot.h"
#include "transports/gloo/op_queue.h"
#include "transports/gloo/point_to_point.h"
#include "transports/gloo/prepared_collectives.h"
#include "transports/gloo/protection.h"
#include "transports/gloo/signals.h"
#include "transports/gloo/staged.h"
#include "transports/gloo/watchdog.h"

namespace shardrun::gloo_transport {
namespace {

std::uint64_t chunk_bytes_of(const sdk::OptionValues& options) {
  return static_cast<std::uint64_t>(options.integer("chunk")) << 10U;
}

/// A group of more than one member: its connections, and the thread that uses them.
class GlooGroup final : public sdk::Group, public Watched {
 public:
  /// Connects the members. All arguments except `spec` outlive this.
  GlooGroup(const sdk::Config& config, const sdk::GroupSpec& spec, std::shared_ptr<gloo::transport::Device>& device,
            std::uint64_t generation, Watchdog& watchdog, std::atomic<std::uint64_t>& wire_bytes);

  std::unique_ptr<sdk::Op> prepare(std::span<const sdk::OpSpec> ops, sdk::Deadline deadline) override;
  void abort(std::string_view reason) noexcept override;
  std::optional<sdk::TransportError> error() override;

  void check() noexcept override;
  void on_job_end() noexcept override;

 private:
  using BufferOf = std::function<void*(std::uint32_t peer)>;

  void confirm_connections(const sdk::GroupSpec& spec);
  void agree(const sdk::OpSpec& op, sdk::Deadline deadline);
  /// Sends `bytes` bytes to every other member and receives as many from it.
  void exchange(std::size_t bytes, const BufferOf& sent, const BufferOf& received);

  FullMesh mesh_;
  PreparedCollectives prepared_;
  OneShot one_shot_;
  StagedMessages staged_messages_;
  PointToPoint point_to_point_;
  OpQueue queue_;      // destroyed first: its thread uses the members above
  Watching watching_;  // destroyed before the objects that it watches
};

GlooGroup::GlooGroup(const sdk::Config& config, const sdk::GroupSpec& spec,
                     std::shared_ptr<gloo::transport::Device>& device, std::uint64_t generation, Watchdog& watchdog,
                     std::atomic<std::uint64_t>& wire_bytes)
    : mesh_(config, spec, device, generation, wire_bytes),
      one_shot_(mesh_),
      staged_messages_(mesh_, chunk_bytes_of(config.options)),
      point_to_point_(mesh_),
      queue_(
          [this] {
            const NoSigpipe no_sigpipe;
            mesh_.fail();
          },
          [this](std::thread::id thread) { return mesh_.awaited_by(thread); }),
      watching_(watchdog, *this) {
  confirm_connections(spec);
}

/// A connection is complete on one side before the other. So every member receives from all others before anyone can
/// abort or leave the group.
void GlooGroup::confirm_connections(const sdk::GroupSpec& spec) {
  std::vector<std::uint8_t> words(mesh_.size());
  const auto word = [&](std::uint32_t member) { return &words[member]; };
  queue_.run_concurrently("connecting the group '" + spec.name + "'", spec.deadline, [&] {
    exchange(
        1, [&](std::uint32_t) { return word(mesh_.rank()); }, word);
  });
}

std::unique_ptr<sdk::Op> GlooGroup::prepare(std::span<const sdk::OpSpec> ops, sdk::Deadline deadline) {
  const sdk::OpSpec& first = ops[0];
  if (!sdk::find_opcode(first.opcode)->collective) {
    return make_batch_op(point_to_point_, queue_, ops);
  }
  agree(first, deadline);
  auto prepared = prepared_.add(first);
  return is_one_shot(first, mesh_.size()) ? make_one_shot_op(one_shot_, queue_, std::move(prepared), first)
                                          : make_staged_op(staged_messages_, queue_, std::move(prepared), first);
}

/// Gloo ends the process where more bytes arrive than a receive has room for. So no byte of an op moves before all
/// members have found that their descriptions match. It does not queue behind running ops, whose order relative to
/// preparations differs between members.
void GlooGroup::agree(const sdk::OpSpec& op, sdk::Deadline deadline) {
  sdk::Agreement agreement(op, mesh_.rank(), mesh_.size());
  queue_.run_concurrently("preparing " + describe(op), deadline, [&] {
    for (std::uint32_t round = 0; round < sdk::Agreement::rounds; ++round) {
      exchange(
          agreement.bytes(round), [&](std::uint32_t peer) { return agreement.outgoing(round, peer); },
          [&](std::uint32_t peer) { return agreement.incoming(round, peer); });
      agreement.conclude(round);
    }
  });
  if (const auto& why = agreement.difference()) {
    throw sdk::TransportError(SR_INVALID, *why);
  }
}

void GlooGroup::exchange(std::size_t bytes, const BufferOf& sent, const BufferOf& received) {
  const std::uint32_t n = mesh_.size();
  const auto slot = slot_of(Channel::agreement);
  std::vector<GlooBuffer> from(n);
  std::vector<GlooBuffer> to(n);
  for (std::uint32_t distance = 1; distance < n; ++distance) {
    const std::uint32_t peer = (mesh_.rank() + distance) % n;
    from[peer] = mesh_.buffer(received(peer), bytes);
    to[peer] = mesh_.buffer(sent(peer), bytes);
    mesh_.receive(*from[peer], peer, slot, bytes);
    mesh_.send(*to[peer], peer, slot, bytes);
  }
  for (std::uint32_t distance = 1; distance < n; ++distance) {
    const std::uint32_t peer = (mesh_.rank() + distance) % n;
    mesh_.wait_received(*from[peer], peer);
    mesh_.wait_sent(*to[peer], peer);
  }
}

void GlooGroup::abort(std::string_view reason) noexcept { queue_.fail({SR_ABORTED, std::string(reason)}); }

std::optional<sdk::TransportError> GlooGroup::error() { return queue_.failure(); }

void GlooGroup::check() noexcept {
  queue_.check_deadlines();
  mesh_.check_connections();
}

void GlooGroup::on_job_end() noexcept { queue_.fail({SR_ABORTED, "the job ends"}); }

/// TCP connections between all members of each group, by the library Gloo. Listeners bind to the address that the host
/// gives, or to the loopback interface where it gives none.
class GlooTransport {
 public:
  static std::vector<sdk::Option> options() {
    return {sdk::integer_option("chunk", 1024, 8, 1 << 20,
                                "KiB of a long message that are sent, received and reduced at a time"),
            protect_option()};
  }

  sdk::Props props() const { return {}; }

  std::optional<sdk::OpInfo> query(const sdk::OpSpec& op, std::uint32_t group_size) const {
    constexpr std::uint32_t in_order = SR_OP_INFO_ORDERED | SR_OP_INFO_STEPWISE | SR_OP_INFO_ROUNDED_ONCE;
    if (group_size == 1) {
      return sdk::OpInfo{.flags = in_order};
    }
    if (is_one_shot(op, group_size)) {
      return sdk::OpInfo{.flags = SR_OP_INFO_NATIVE | SR_OP_INFO_ASYNC | in_order};
    }
    return sdk::OpInfo{.flags = SR_OP_INFO_ASYNC | sdk::rounding_flags(op, group_size),
                       .scratch_bytes = scratch_bytes_of(op, group_size)};
  }

  void open(const sdk::Config& config) {
    config_ = config;
    watchdog_ = std::make_unique<Watchdog>(config.host);
    const NoSigpipe no_sigpipe;  // the device's thread inherits it
    gloo::transport::tcp::attr address;
    // An empty name would mean the machine's own name, whose address other machines may not reach.
    address.hostname = config.address.empty() ? "127.0.0.1" : config.address;
    try {
      device_ = gloo::transport::tcp::CreateDevice(address);
    } catch (const std::exception& error) {
      throw sdk::TransportError(SR_INVALID, "cannot listen on '" + address.hostname + "': " + error.what());
    }
  }

  void close() {
    device_.reset();
    watchdog_.reset();
  }

  /// The bytes given to Gloo to send, its preambles included:
  /// - a message sent: 96 bytes and its length
  /// - a message received: 48 bytes
  /// - the tags of protected records: 16 bytes for each preamble and for each 128 KiB begun of a message
  std::uint64_t wire_bytes() const { return wire_bytes_.load(std::memory_order_relaxed); }

  std::uint64_t mem_register(const sr_memory&) { return ++registrations_; }
  void mem_deregister(std::uint64_t) {}

  std::unique_ptr<sdk::Group> group(const sdk::GroupSpec& spec) {
    if (spec.size() == 1) {
      return std::make_unique<sdk::LoneGroup>();
    }
    // A failed context cannot be used again. The generation keeps a new one apart from its entries in the store.
    const std::uint64_t generation = generations_[{spec.id, spec.members}]++;
    return std::make_unique<GlooGroup>(config_, spec, device_, generation, *watchdog_, wire_bytes_);
  }

 private:
  sdk::Config config_;
  std::unique_ptr<Watchdog> watchdog_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::map<std::pair<std::uint64_t, std::vector<std::uint32_t>>, std::uint64_t> generations_;
  std::atomic<std::uint64_t> wire_bytes_ = 0;
  std::uint64_t registrations_ = 0;
};

}  // namespace
}  // namespace shardrun::gloo_transport

SHARDRUN_EXPORT_TRANSPORT(shardrun::gloo_transport::GlooTransport, "gloo", "1.0",
                          "tcp ethernet socket sockets ip network")
