#include <fmt/format.h>
#include <shardrun/transport.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <iterator>
#include <numeric>

#include "bench/collectives/contestant.h"
#include "core/base/error.h"

namespace shardrun::bench {
namespace {

std::uint32_t opcode_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce: return SR_OP_ALL_REDUCE;
    case Kind::all_gather: return SR_OP_ALL_GATHER;
    case Kind::reduce_scatter: return SR_OP_REDUCE_SCATTER;
    case Kind::all_to_all: return SR_OP_ALL_TO_ALL;
    case Kind::broadcast: return SR_OP_BROADCAST;
    case Kind::send_recv: return SR_OP_SEND;
  }
  return 0;
}

std::int64_t deadline() { return plugins::transport_clock() + patience_ns; }

/// Parses the options in NAME:KEY=VALUE:KEY=VALUE.
OptionValues options_of(const std::string& name, const std::vector<OptionSpec>& specs) {
  OptionValues values;
  for (std::size_t at = name.find(':'); at != std::string::npos; at = name.find(':', at + 1)) {
    const std::string setting = name.substr(at + 1, name.find(':', at + 1) - at - 1);
    const std::string key = setting.substr(0, setting.find('='));
    values.set(key, read_option(specs, key, setting.substr(std::min(setting.size(), key.size() + 1))));
  }
  return values;
}

/// A name that matches [a-z0-9]+ and is unique among the contestants that use the same store.
std::string run_of(const std::string& name) {
  std::string run = "bench";
  std::ranges::copy_if(name, std::back_inserter(run), [](unsigned char c) { return std::isalnum(c) != 0; });
  return run;
}

/// A transport plugin, used as the executor uses it: through the host's loader, with blocking waits.
class Transport final : public Contestant {
 public:
  Transport(Rendezvous& rendezvous, const device::HostMemory& arena, const std::string& folder, const std::string& name,
            bool is_ours)
      : Contestant(name),
        is_ours_(is_ours),
        rank_(rendezvous.rank()),
        transport_(plugins::Transport::load({folder}, name.substr(0, name.find(':')))) {
    transport_.configure({.options = options_of(name, transport_.options()), .world_size = rendezvous.size()});
    transport_.open({.rank = rendezvous.rank(),
                     .world_size = rendezvous.size(),
                     .local_rank = rendezvous.rank(),
                     .local_world_size = rendezvous.size(),
                     .job = run_of(name),
                     .address = "127.0.0.1",
                     .deadline = sdk::Deadline::from_border(deadline()),
                     .secret = std::array<std::uint8_t, 32>{}},
                    rendezvous);
    registration_ = transport_.register_memory(arena.data(), arena.bytes(), arena.descriptor());
    std::vector<std::uint32_t> members(rendezvous.size());
    std::iota(members.begin(), members.end(), 0U);
    group_.emplace(transport_.group({.rank = rendezvous.rank(),
                                     .members = members,
                                     .name = "bench",
                                     .id = 1,
                                     .deadline = sdk::Deadline::from_border(deadline())}));
  }

  bool is_ours() const noexcept override { return is_ours_; }

  Run prepare(const Exercise& e) override {
    std::vector<sdk::OpSpec> requests = {request_of(e)};
    ++ids_;
    if (e.kind == Kind::send_recv) {
      requests.push_back(requests[0]);
      requests[0].recv.reset();
      requests[1].send.reset();
      requests[1].opcode = SR_OP_RECV;
      requests[1].peer = e.previous();
    }
    for (sdk::OpSpec& request : requests) {
      request.id = ids_;
      request.scratch = scratch_for(request, e.size);
    }
    const auto op = std::make_shared<plugins::TransportOp>(group_->prepare(requests, deadline()));
    return [op] {
      op->start(deadline());
      if (!op->wait(INT64_MAX)) {
        throw Error(ErrorCode::timeout, "an op is past its deadline");
      }
    };
  }

  [[nodiscard]] double overhead() {
    plugins::TransportGroup alone = transport_.group(
        {.rank = 0, .members = {rank_}, .name = "alone", .id = 2, .deadline = sdk::Deadline::from_border(deadline())});
    std::vector<float> data(2);
    sdk::OpSpec request{.opcode = SR_OP_ALL_REDUCE,
                        .dtype = SR_DTYPE_F32,
                        .reduction = SR_REDUCE_SUM,
                        .flags = SR_OP_FLAG_BLOCKING,
                        .id = 1,
                        .count = 2,
                        .send = sdk::Buffer{data.data(), data.size() * sizeof(float)}};
    request.recv = request.send;
    plugins::TransportOp op = alone.prepare({request}, deadline());
    double least = 1e9;
    for (int round = 0; round < 20; ++round) {
      constexpr int times = 5000;
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < times; ++i) {
        op.start(INT64_MAX);
        (void)op.wait(INT64_MAX);
      }
      const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
      least = std::min(least, taken.count() / times);
    }
    return least;
  }

 private:
  [[nodiscard]] sdk::OpSpec request_of(const Exercise& e) const {
    sdk::OpSpec request;
    request.opcode = opcode_of(e.kind);
    request.dtype = SR_DTYPE_F32;
    request.reduction = SR_REDUCE_SUM;
    request.peer = e.kind == Kind::send_recv ? e.next() : 0;
    request.flags = SR_OP_FLAG_BLOCKING;
    request.count = e.count;
    request.send = sdk::Buffer{e.send, e.sent() * sizeof(float), registration_};
    request.recv = sdk::Buffer{e.recv, e.received() * sizeof(float), registration_};
    if (e.kind == Kind::broadcast && e.rank != 0) {
      request.send.reset();
    }
    return request;
  }

  /// In core, scratch is in the arena too. Exercises can share it, because only one runs at a time.
  std::optional<sdk::Buffer> scratch_for(const sdk::OpSpec& request, std::uint32_t size) {
    const std::uint64_t bytes = transport_.query(request, size).scratch_bytes;
    if (bytes == 0) {
      return std::nullopt;
    }
    if (scratch_.empty() || scratch_.back()->bytes() < bytes) {
      const device::HostMemory& more = *scratch_.emplace_back(std::make_unique<device::HostMemory>(bytes));
      scratch_registration_ = transport_.register_memory(more.data(), bytes, more.descriptor());
    }
    return sdk::Buffer{scratch_.back()->data(), bytes, scratch_registration_};
  }

  bool is_ours_;
  std::uint32_t rank_;
  std::vector<std::unique_ptr<device::HostMemory>> scratch_;  // destroyed after the transport
  plugins::Transport transport_;
  std::uint64_t registration_ = 0;
  std::uint64_t scratch_registration_ = 0;
  std::optional<plugins::TransportGroup> group_;
  std::uint64_t ids_ = 0;
};

}  // namespace

std::unique_ptr<Contestant> make_transport(Rendezvous& rendezvous, const device::HostMemory& arena,
                                           const std::string& folder, const std::string& name, bool is_ours) {
  return std::make_unique<Transport>(rendezvous, arena, folder, name, is_ours);
}

double call_overhead(Contestant& transport) { return dynamic_cast<Transport&>(transport).overhead(); }

}  // namespace shardrun::bench
