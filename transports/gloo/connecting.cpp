#include "transports/gloo/connecting.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <shardrun/sdk/worker.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace shardrun::gloo_transport {
namespace {

using sdk::TransportError;

/// Gloo gives up connecting after five times what it is told. It is told a year: `Watch` is sooner.
constexpr std::chrono::milliseconds patience = std::chrono::hours(24 * 365) / 5;

/// How often it is looked whether the job is to end.
constexpr std::chrono::nanoseconds glance = std::chrono::milliseconds(50);

/// The members are part of the key: groups of the same id need not share members.
std::string prefix_of(const sdk::Config& config, const sdk::GroupSpec& group, std::uint64_t generation) {
  std::string prefix = "gloo/" + config.job + "/" + std::to_string(group.id) + "/" + std::to_string(generation);
  for (const std::uint32_t member : group.members) {
    prefix += "," + std::to_string(member);
  }
  return prefix + "/";
}

/// Gloo's own way to connect, connectFullMesh, waits up to five times its timeout and cannot be interrupted: here each
/// connection is made by itself.
class Context final : public gloo::Context {
 public:
  Context(const sdk::GroupSpec& group, std::shared_ptr<gloo::transport::Device>& device)
      : gloo::Context(static_cast<int>(group.rank), static_cast<int>(group.size())) {
    device_ = device;
    transportContext_ = device->createContext(rank, size);
    transportContext_->setTimeout(patience);
  }

  /// The address that `peer` connects to.
  std::vector<char> listen(std::uint32_t peer) {
    return transportContext_->createPair(static_cast<int>(peer))->address().bytes();
  }
};

/// Closes a context's connections once the job is to end or the deadline has passed. Gloo's connecting sees neither.
class Watch {
 public:
  Watch(gloo::Context& context, const sdk::TransportHost& host, std::int64_t deadline)
      : context_(context), host_(host), deadline_(deadline), thread_([this] { look(); }) {}
  ~Watch() { (void)stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// SR_OK where it closed nothing, else why it did. Nothing is closed after it returns.
  std::int32_t stop() {
    if (thread_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
      }
      stopped_.notify_all();
      thread_.join();
    }
    return status_;
  }

 private:
  void look() {
    std::unique_lock lock(mutex_);
    while (!stopped_.wait_for(lock, until_next_look(), [&] { return stopping_; })) {
      if (host_.aborted()) {
        status_ = SR_ABORTED;
      } else if (sdk::steady_now() >= deadline_) {
        status_ = SR_TIMEOUT;
      }
      // Again and again, as the next connection may be begun after the others were closed.
      if (status_ != SR_OK) {
        close();
      }
    }
  }

  [[nodiscard]] std::chrono::nanoseconds until_next_look() const {
    const std::chrono::nanoseconds left(deadline_ - std::min(deadline_, sdk::steady_now()));
    return status_ == SR_OK ? std::min(left, glance) : glance;
  }

  void close() noexcept {
    try {
      context_.closeConnections();
    } catch (const std::exception&) {
      // Closed already.
    }
  }

  gloo::Context& context_;
  sdk::TransportHost host_;
  std::int64_t deadline_;
  std::int32_t status_ = SR_OK;
  bool stopping_ = false;
  std::mutex mutex_;  // of the two above
  std::condition_variable stopped_;
  std::thread thread_;  // after what it uses
};

TransportError past_deadline(const sdk::GroupSpec& group, std::uint32_t peer) {
  return {SR_TIMEOUT, "past the deadline, waiting for " + name_of(group, peer)};
}

/// Addresses of a member's listeners, one for each member, of one size; its own is empty.
class Addresses {
 public:
  Addresses(const sdk::Config& config, const sdk::GroupSpec& group, std::uint64_t generation)
      : config_(config), group_(group), prefix_(prefix_of(config, group, generation)) {}

  void publish(Context& context) {
    std::vector<std::vector<char>> addresses(group_.size());
    try {
      for (std::uint32_t peer = 0; peer < group_.size(); ++peer) {
        if (peer != group_.rank) {
          addresses[peer] = context.listen(peer);
          each_ = addresses[peer].size();
        }
      }
    } catch (const std::exception& error) {
      throw TransportError(SR_INVALID, "cannot listen on '" + config_.address + "': " + reason_of(error) +
                                           "; the address has to be one of this machine's");
    }
    addresses[group_.rank].resize(each_);
    std::string packed;
    for (const std::vector<char>& address : addresses) {
      packed.append(address.data(), address.size());
    }
    config_.host.store_set(prefix_ + std::to_string(group_.rank), packed);
  }

  /// Where `peer` listens for this member. After `publish`; waits until the peer has published too.
  [[nodiscard]] std::vector<char> of(std::uint32_t peer) const {
    const std::size_t bytes = each_ * group_.size();
    const std::string packed = published_by(peer, bytes);
    if (packed.size() != bytes) {
      throw TransportError(SR_INTERNAL, name_of(group_, peer) + " published addresses of another size");
    }
    const auto* const begin = packed.data() + each_ * group_.rank;
    return {begin, begin + each_};
  }

 private:
  [[nodiscard]] std::string published_by(std::uint32_t peer, std::size_t bytes) const {
    try {
      return config_.host.store_get(prefix_ + std::to_string(peer), group_.deadline, bytes);
    } catch (const TransportError& error) {
      if (error.status() != SR_TIMEOUT) {
        throw;
      }
      throw past_deadline(group_, peer);
    }
  }

  const sdk::Config& config_;
  const sdk::GroupSpec& group_;
  std::string prefix_;
  std::size_t each_ = 0;
};

/// Throws where the watch has closed the connections, the last of which was that to `peer`.
void require_open(Watch& watch, const sdk::GroupSpec& group, std::uint32_t peer) {
  const std::int32_t status = watch.stop();
  if (status == SR_ABORTED) {
    throw TransportError(status, "the job ends");
  }
  if (status == SR_TIMEOUT) {
    throw past_deadline(group, peer);
  }
}

}  // namespace

std::string name_of(const sdk::GroupSpec& group, std::uint32_t peer) {
  return "member " + std::to_string(peer) + " (rank " + std::to_string(group.members[peer]) + ")";
}

/// Gloo's reasons begin with "[file:line] ".
std::string reason_of(const std::exception& error) {
  const std::string_view text = error.what();
  const std::size_t end = text.find("] ");
  return std::string(text.substr(text.starts_with('[') && end != std::string_view::npos ? end + 2 : 0));
}

std::unique_ptr<gloo::Context> connect_members(const sdk::Config& config, const sdk::GroupSpec& group,
                                               std::shared_ptr<gloo::transport::Device>& device,
                                               std::uint64_t generation) {
  auto context = std::make_unique<Context>(group, device);
  Addresses addresses(config, group, generation);
  addresses.publish(*context);
  Watch watch(*context, config.host, group.deadline);
  std::uint32_t last = 0;
  for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank) {
      continue;
    }
    last = peer;
    const std::vector<char> address = addresses.of(peer);
    try {
      context->getPair(static_cast<int>(peer))->connect(address);
    } catch (const std::exception& error) {  // Gloo has several bases
      require_open(watch, group, peer);
      throw TransportError(SR_PEER_LOST, name_of(group, peer) + " is lost: " + reason_of(error));
    }
  }
  require_open(watch, group, last);
  return context;
}

}  // namespace shardrun::gloo_transport
