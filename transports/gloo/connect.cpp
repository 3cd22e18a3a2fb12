#include "transports/gloo/connect.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <deque>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace shardrun::gloo_transport {
namespace {

using gloo::transport::UnboundBuffer;
using sdk::TransportError;
using std::chrono::milliseconds;

constexpr milliseconds for_ever = std::chrono::hours(24 * 365);

/// Gloo sends a preamble before each message, one that announces the message, and one for each posted receive.
constexpr std::uint64_t preamble_bytes = 6 * sizeof(std::size_t);

/// The deadline for which limit_of returned `limit`; never, if Gloo takes the limit as none.
sdk::Deadline deadline_of(milliseconds limit) noexcept {
  const bool is_limited = limit >= milliseconds(0) && limit < milliseconds::max();
  return is_limited ? sdk::Deadline::past() + limit : sdk::Deadline::never();
}

/// A buffer that uses a separate Gloo buffer for each transfer. Transfers are waited for in the order of their starts.
class WatchedBuffer final : public UnboundBuffer {
 public:
  WatchedBuffer(gloo::transport::Context& connections, Waits& waits, std::atomic<std::uint64_t>& wire_bytes, void* data,
                std::size_t bytes)
      : UnboundBuffer(data, bytes), connections_(connections), waits_(waits), wire_bytes_(wire_bytes) {}

  void send(int to, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    begin(sends_, to, offset, bytes, [&](UnboundBuffer& buffer) {
      buffer.send(to, slot);
      wire_bytes_.fetch_add(2 * preamble_bytes + buffer.size, std::memory_order_relaxed);
    });
  }
  void recv(int from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    begin(receives_, from, offset, bytes, [&](UnboundBuffer& buffer) {
      buffer.recv(from, slot);
      wire_bytes_.fetch_add(preamble_bytes, std::memory_order_relaxed);
    });
  }
  void recv(std::vector<int>, std::uint64_t, std::size_t, std::size_t) override {
    throw std::logic_error("a receive from any of several members could not say whom it waits for");
  }

  bool waitSend(int* rank, milliseconds limit) override {
    return wait(sends_, rank, limit, [](UnboundBuffer& buffer) { return buffer.waitSend(for_ever); });
  }
  bool waitRecv(int* rank, milliseconds limit) override {
    return wait(receives_, rank, limit, [](UnboundBuffer& buffer) { return buffer.waitRecv(for_ever); });
  }
  void abortWaitSend() override { waits_.fail(); }
  void abortWaitRecv() override { waits_.fail(); }

 private:
  struct Transfer {
    std::uint32_t peer = 0;
    std::unique_ptr<UnboundBuffer> buffer;
  };

  template <class Act>
  void begin(std::deque<Transfer>& transfers, int peer, std::size_t offset, std::size_t bytes, Act act) {
    Transfer transfer{
        static_cast<std::uint32_t>(peer),
        connections_.createUnboundBuffer(static_cast<std::byte*>(ptr) + offset, std::min(bytes, size - offset))};
    waits_.call(transfer.peer, [&] { act(*transfer.buffer); });
    transfers.push_back(std::move(transfer));
  }

  template <class Act>
  bool wait(std::deque<Transfer>& transfers, int* rank, milliseconds limit, Act act) {
    const Transfer& oldest = transfers.front();
    waits_.wait(*oldest.buffer, oldest.peer, deadline_of(limit), [&] { return act(*oldest.buffer); });
    if (rank != nullptr) {
      *rank = static_cast<int>(oldest.peer);
    }
    transfers.pop_front();
    return true;
  }

  gloo::transport::Context& connections_;
  Waits& waits_;
  std::atomic<std::uint64_t>& wire_bytes_;
  std::deque<Transfer> sends_;
  std::deque<Transfer> receives_;
};

class WatchedContext final : public gloo::transport::Context {
 public:
  WatchedContext(std::shared_ptr<Context> connections, Waits& waits, std::atomic<std::uint64_t>& wire_bytes)
      : Context(connections->rank, connections->size),
        connections_(std::move(connections)),
        waits_(waits),
        wire_bytes_(wire_bytes) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int peer) override { return connections_->getPair(peer); }
  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    connections_->setTimeout(getTimeout());
    return connections_->createPair(peer);
  }
  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void* data, std::size_t bytes) override {
    return std::make_unique<WatchedBuffer>(*connections_, waits_, wire_bytes_, data, bytes);
  }

 private:
  std::shared_ptr<Context> connections_;
  Waits& waits_;
  std::atomic<std::uint64_t>& wire_bytes_;
};

class WatchedDevice final : public gloo::transport::Device {
 public:
  WatchedDevice(std::shared_ptr<Device> device, Waits& waits, std::atomic<std::uint64_t>& wire_bytes)
      : device_(std::move(device)), waits_(waits), wire_bytes_(wire_bytes) {}

  std::string str() const override { return device_->str(); }
  const std::string& getPCIBusID() const override { return device_->getPCIBusID(); }
  std::shared_ptr<gloo::transport::Context> createContext(int rank, int size) override {
    auto connections = device_->createContext(rank, size);
    waits_.set_connections(connections);
    return std::make_shared<WatchedContext>(std::move(connections), waits_, wire_bytes_);
  }

 private:
  std::shared_ptr<Device> device_;
  Waits& waits_;
  std::atomic<std::uint64_t>& wire_bytes_;
};

/// Gives Gloo the job's store. It waits until the group's deadline or the end of the job.
class JobStore final : public gloo::rendezvous::Store {
 public:
  JobStore(const sdk::TransportHost& host, const sdk::GroupSpec& group, std::string prefix)
      : host_(host), group_(group), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    host_.store_set(prefix_ + key, {data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override {
    awaited_ = member_of(key);
    try {
      // The value is a member's addresses for all others, or its machine's name.
      const std::size_t capacity = 256 + group_.size() * gloo::transport::Address::kMaxByteSize;
      const std::string value = host_.store_get(prefix_ + key, group_.deadline, capacity);
      return {value.begin(), value.end()};
    } catch (const TransportError& error) {
      if (error.status() != SR_TIMEOUT) {
        throw;
      }
      throw TransportError(SR_TIMEOUT, "past the deadline, waiting for " + group_.name_of(awaited_),
                           group_.members[awaited_]);
    }
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      (void)get(key);
    }
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

  /// The member whose entry was requested last.
  [[nodiscard]] std::uint32_t awaited() const noexcept { return awaited_; }

 private:
  /// Gloo's keys end with the number of the member that sets them.
  [[nodiscard]] std::uint32_t member_of(const std::string& key) const {
    std::uint32_t member = 0;
    std::from_chars(key.data() + key.find_last_not_of("0123456789") + 1, key.data() + key.size(), member);
    return std::min(member, group_.size() - 1);
  }

  sdk::TransportHost host_;
  sdk::GroupSpec group_;
  std::string prefix_;
  std::uint32_t awaited_ = 0;
};

/// Older versions of Gloo take a reference to the store.
template <class Context>
void connect_full_mesh(Context& context, const std::shared_ptr<JobStore>& store, Device& device) {
  if constexpr (requires { context.connectFullMesh(store, device); }) {
    context.connectFullMesh(store, device);
  } else {
    context.connectFullMesh(*store, device);
  }
}

}  // namespace

std::shared_ptr<gloo::Context> connect(const sdk::Config& config, const sdk::GroupSpec& group, std::uint64_t generation,
                                       Device device, Waits& waits, std::atomic<std::uint64_t>& wire_bytes) {
  std::string prefix = "gloo/" + config.job + "/" + std::to_string(group.id) + "/" + std::to_string(generation) + "/";
  for (const std::uint32_t member : group.members) {  // because groups with the same id may have different members
    prefix += std::to_string(member) + ",";
  }
  const auto store = std::make_shared<JobStore>(config.host, group, prefix + "/");
  auto context =
      std::make_shared<gloo::rendezvous::Context>(static_cast<int>(group.rank), static_cast<int>(group.size()));
  // Gloo's wait for a member that has published its addresses takes five times this limit.
  const auto left = std::chrono::duration_cast<milliseconds>(group.deadline.left());
  context->setTimeout(std::min(left, for_ever) / 5 + milliseconds(1));
  Device watched = std::make_shared<WatchedDevice>(std::move(device), waits, wire_bytes);
  try {
    connect_full_mesh(*context, store, watched);
  } catch (const std::exception&) {
    waits.call(store->awaited(), [] { throw; });
  }
  return context;
}

milliseconds limit_of(sdk::Deadline deadline) noexcept {
  // At least 1 ms, because Gloo refuses less.
  return deadline == sdk::Deadline::never()
             ? milliseconds::max()
             : std::chrono::floor<milliseconds>(deadline - sdk::Deadline::past()) + milliseconds(1);
}

}  // namespace shardrun::gloo_transport
