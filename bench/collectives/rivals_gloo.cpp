#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>

#include "bench/collectives/contestant.h"

namespace shardrun::bench {
namespace {

class RendezvousStore final : public gloo::rendezvous::Store {
 public:
  explicit RendezvousStore(Rendezvous& rendezvous) : rendezvous_(rendezvous) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    rendezvous_.store_set("gloo/" + key, {data.begin(), data.end()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = rendezvous_.store_get("gloo/" + key, plugins::transport_clock() + patience_ns);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      (void)get(key);
    }
  }

 private:
  Rendezvous& rendezvous_;
};

/// Gloo's own algorithms, called as in its examples. Gloo has no reduce_scatter.
class Gloo final : public Contestant {
 public:
  explicit Gloo(Rendezvous& rendezvous)
      : Contestant("Gloo"),
        context_(std::make_shared<gloo::rendezvous::Context>(static_cast<int>(rendezvous.rank()),
                                                             static_cast<int>(rendezvous.size()))) {
    gloo::transport::tcp::attr address("127.0.0.1");
    RendezvousStore store(rendezvous);
    context_->setTimeout(std::chrono::seconds(120));
    auto device = gloo::transport::tcp::CreateDevice(address);
    context_->connectFullMesh(store, device);
  }

  Run prepare(const Exercise& e) override {
    switch (e.kind) {
      case Kind::all_reduce: return [this, e] { all_reduce(e); };
      case Kind::all_gather:
        return [this, e] {
          gloo::AllgatherOptions options(context_);
          options.setInput(e.send, e.sent());
          options.setOutput(e.recv, e.received());
          gloo::allgather(options);
        };
      case Kind::reduce_scatter: return {};
      case Kind::all_to_all:
        return [this, e] {
          gloo::AlltoallOptions options(context_);
          options.setInput(e.send, e.sent());
          options.setOutput(e.recv, e.received());
          gloo::alltoall(options);
        };
      case Kind::broadcast:
        return [this, e] {
          gloo::BroadcastOptions options(context_);
          options.setRoot(0);
          options.setOutput(e.recv, e.received());
          gloo::broadcast(options);
        };
      case Kind::send_recv: return [this, e] { send_recv(e); };
    }
    return {};
  }

 private:
  void all_reduce(const Exercise& e) {
    gloo::AllreduceOptions options(context_);
    if (!e.in_place) {
      options.setInput(e.send, e.count);
    }
    options.setOutput(e.recv, e.count);
    options.setReduceFunction([](void* to, const void* a, const void* b, std::size_t n) {
      gloo::sum<float>(static_cast<float*>(to), static_cast<const float*>(a), static_cast<const float*>(b), n);
    });
    gloo::allreduce(options);
  }

  void send_recv(const Exercise& e) {
    const auto out = context_->createUnboundBuffer(e.send, e.sent() * sizeof(float));
    const auto in = context_->createUnboundBuffer(e.recv, e.received() * sizeof(float));
    out->send(static_cast<int>(e.next()), 7);
    in->recv(static_cast<int>(e.previous()), 7);
    out->waitSend();
    in->waitRecv();
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace

std::unique_ptr<Contestant> make_gloo(Rendezvous& rendezvous) { return std::make_unique<Gloo>(rendezvous); }

}  // namespace shardrun::bench
