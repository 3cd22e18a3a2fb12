#include <gloo/transport/tcp/device.h>
#include <shardrun/sdk/collectives.hpp>
#include <shardrun/sdk/lone_group.hpp>
#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transports/gloo/group.h"
#include "transports/gloo/one_shot.h"
#include "transports/gloo/signals.h"
#include "transports/gloo/watchdog.h"

namespace shardrun::gloo_transport {
namespace {

/// TCP connections between all members of each group, by the library Gloo. Listeners bind to the address that the host
/// gives, or to the loopback interface where it gives none.
class GlooTransport {
 public:
  static std::vector<sdk::Option> options() { return group_options(); }

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
    // A failed context cannot be used again. The generation keeps a new one apart from what it left in the store.
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
