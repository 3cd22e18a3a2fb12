// all_reduce of float32 between two processes of this machine: the transport gloo, and Gloo itself called directly, in
// turns over the same buffers. Prints microseconds an op and their ratio.

#include <fmt/format.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <shardrun/transport.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "plugins/conformance/store.h"
#include "plugins/loader/transport.h"

namespace {

using namespace shardrun;

constexpr std::int64_t patience_ns = 60'000'000'000;

/// What both sides meet through.
class Host final : public plugins::TransportHost {
 public:
  explicit Host(conformance::Store& store) : store_(store) {}

  bool aborted() const noexcept override { return store_.aborted(); }
  void store_set(const std::string& key, std::string value) override { store_.set(key, value); }
  std::string store_get(const std::string& key, std::int64_t deadline) override {
    std::optional<std::string> value = store_.get(key, deadline);
    if (!value) {
      throw Error(ErrorCode::timeout, fmt::format("nobody has set '{}'", key));
    }
    return std::move(*value);
  }

 private:
  conformance::Store& store_;
};

class DirectStore final : public gloo::rendezvous::Store {
 public:
  explicit DirectStore(Host& host) : host_(host) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    host_.store_set("direct/" + key, {data.begin(), data.end()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = host_.store_get("direct/" + key, plugins::transport_clock() + patience_ns);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      (void)get(key);
    }
  }

 private:
  Host& host_;
};

class Direct {
 public:
  Direct(Host& host, int rank) : context_(std::make_shared<gloo::rendezvous::Context>(rank, 2)) {
    gloo::transport::tcp::attr address("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(address);
    DirectStore store(host);
    context_->connectFullMesh(store, device);
  }

  void all_reduce(std::vector<float>& data) {
    gloo::AllreduceOptions options(context_);
    options.setOutput(data.data(), data.size());
    options.setReduceFunction([](void* to, const void* a, const void* b, std::size_t n) {
      gloo::sum<float>(static_cast<float*>(to), static_cast<const float*>(a), static_cast<const float*>(b), n);
    });
    gloo::allreduce(options);
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

plugins::TransportOp prepare(plugins::TransportGroup& group, std::vector<float>& data, std::vector<float>& scratch,
                             std::uint64_t id) {
  plugins::OpRequest request;
  request.opcode = SR_OP_ALL_REDUCE;
  request.dtype = SR_DTYPE_F32;
  request.reduction = SR_REDUCE_SUM;
  request.flags = SR_OP_FLAG_BLOCKING;
  request.id = id;
  request.count = data.size();
  request.send = request.recv = plugins::HostBuffer{data.data(), data.size() * sizeof(float)};
  request.scratch = plugins::HostBuffer{scratch.data(), scratch.size() * sizeof(float)};
  return group.prepare({request}, plugins::transport_clock() + patience_ns);
}

template <class Act>
double microseconds(int times, Act act) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) {
    act();
  }
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / times;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(conformance::Store& store, const std::string& folder, int rank) {
  Host host(store);
  plugins::Directories directories = {folder};
  plugins::Transport transport = plugins::Transport::load(directories, "gloo");
  transport.open({.rank = static_cast<std::uint32_t>(rank),
                  .world_size = 2,
                  .local_rank = static_cast<std::uint32_t>(rank),
                  .local_world_size = 2,
                  .job = "bench",
                  .address = "127.0.0.1",
                  .options = {},
                  .deadline = INT64_MAX},
                 host);
  plugins::TransportGroup group =
      transport.group({.name = "bench", .id = 1, .rank = static_cast<std::uint32_t>(rank), .members = {0, 1}});
  Direct direct(host, rank);
  std::uint64_t id = 0;
  for (const std::size_t bytes : {4U, 4096U, 65536U, 1U << 20U, 4U << 20U, 32U << 20U}) {
    std::vector<float> data(bytes / sizeof(float));
    std::vector<float> scratch(data.size());
    plugins::TransportOp op = prepare(group, data, scratch, ++id);
    const int times = static_cast<int>(std::clamp<std::size_t>((16U << 20U) / bytes, 2, 300));
    std::vector<double> ours;
    std::vector<double> theirs;
    for (int round = 0; round < 15; ++round) {
      ours.push_back(microseconds(times, [&] {
        op.start(plugins::transport_clock() + patience_ns);
        (void)op.wait(INT64_MAX);
      }));
      theirs.push_back(microseconds(times, [&] { direct.all_reduce(data); }));
    }
    if (rank == 0) {
      fmt::print("{:>10} bytes  transport {:>9.1f} us  Gloo {:>9.1f} us  ratio {:.2f}\n", bytes, median(ours),
                 median(theirs), median(theirs) / median(ours));
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: gloo FOLDER_OF_PLUGINS\n");
    return 2;
  }
  conformance::Store store;
  const pid_t other = fork();
  try {
    run(store, argv[1], other == 0 ? 1 : 0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  int status = 0;
  return other == 0 || (waitpid(other, &status, 0) == other && status == 0) ? 0 : 1;
}
