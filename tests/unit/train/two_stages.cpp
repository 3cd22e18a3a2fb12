// Two stages of a pipeline report numbers that are not finite. The ranks are threads.

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>

#include "core/train/training.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/errors.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using plan::Action;

namespace {

using Bytes = std::vector<std::byte>;

/// A connection of two ranks: what one puts in on a channel, the other takes out, in the same order.
class Wire {
 public:
  void put(int channel, int from, Bytes bytes) {
    const std::lock_guard lock(mutex_);
    queues_[{channel, from}].push_back(std::move(bytes));
    changed_.notify_all();
  }

  Bytes take(int channel, int from) {
    std::unique_lock lock(mutex_);
    std::deque<Bytes>& queue = queues_[{channel, from}];
    changed_.wait(lock, [&] { return ended_ || !queue.empty(); });
    if (queue.empty()) {
      throw Error(ErrorCode::peer_lost, "the other rank has ended");
    }
    Bytes bytes = std::move(queue.front());
    queue.pop_front();
    return bytes;
  }

  /// Called once a rank puts in nothing any more.
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<Bytes>> queues_;
  bool ended_ = false;
};

enum Channel { activations, gradients, sums, agreement, store };

/// Sends, receives and sums of one of two ranks.
class Member final : public runtime::Communicator {
 public:
  Member(Wire& wire, int rank) : wire_(wire), rank_(rank) {}

  Handle prepare(const partition::Transfer& transfer, const TransferBuffers& buffers, bool) override {
    transfers_.push_back({transfer, buffers});
    return transfers_.size() - 1;
  }

  void start(Handle handle) override {
    const auto& [transfer, buffers] = transfers_[handle];
    if (transfer.collective != partition::Collective::receive) {
      const auto* const begin = static_cast<const std::byte*>(buffers.send);
      wire_.put(channel_of(transfer), rank_, Bytes(begin, begin + buffers.send_bytes));
    }
  }

  bool test(Handle) override { return true; }

  void wait(Handle handle) override {
    const auto& [transfer, buffers] = transfers_[handle];
    if (transfer.collective == partition::Collective::send) {
      return;
    }
    const Bytes bytes = wire_.take(channel_of(transfer), 1 - rank_);
    if (transfer.collective == partition::Collective::receive) {
      std::memcpy(buffers.recv, bytes.data(), bytes.size());
      return;
    }
    std::vector<float> others(bytes.size() / sizeof(float));
    std::memcpy(others.data(), bytes.data(), bytes.size());
    const auto* const own = static_cast<const float*>(buffers.send);
    std::transform(others.begin(), others.end(), own, static_cast<float*>(buffers.recv), std::plus<>());
  }

 private:
  static Channel channel_of(const partition::Transfer& transfer) {
    return transfer.collective == partition::Collective::all_reduce ? sums
           : transfer.link.backward                                 ? gradients
                                                                    : activations;
  }

  Wire& wire_;
  int rank_;
  std::vector<std::pair<partition::Transfer, TransferBuffers>> transfers_;
};

std::int32_t agree(Wire& wire, int rank, std::int32_t value) {
  Bytes bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  wire.put(agreement, rank, std::move(bytes));
  const Bytes other = wire.take(agreement, 1 - rank);
  std::int32_t others = 0;
  std::memcpy(&others, other.data(), sizeof(others));
  return std::max(value, others);
}

Bytes bytes_of(const std::string& text) {
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::string text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::string made_of_both(Wire& wire, int rank, const std::string& given,
                         const std::function<std::string(const std::vector<std::string>&)>& make) {
  if (rank == 1) {
    wire.put(store, 1, bytes_of(given));
    return text_of(wire.take(store, 0));
  }
  const std::string made = make({given, text_of(wire.take(store, 1))});
  wire.put(store, 0, bytes_of(made));
  return made;
}

/// Each stage has one forward and one backward in turn, for three microbatches. Layer 0 is on stage 0, and layer 1 on
/// stage 1.
plan::Plan two_stages() {
  using enum Action::Kind;
  plan::Plan plan = plan_of({{"pipe", 2}}, {});
  plan.pipeline = {
      .mesh_axis = "pipe",
      .chunks = {{0, 0}, {1, 1}},
      .actions = {
          {{forward, 0, 0}, {forward, 0, 1}, {backward, 0, 0}, {forward, 0, 2}, {backward, 0, 1}, {backward, 0, 2}},
          {{forward, 1, 0}, {backward, 1, 0}, {forward, 1, 1}, {backward, 1, 1}, {forward, 1, 2}, {backward, 1, 2}}}};
  return plan;
}

compile::Compiled compile_stage(const job::Job& job, std::int64_t rank) {
  compile::Compiled compiled = compile_ready(job);
  compiled.partition =
      partition::split(compiled.graph, two_stages(), compiled.microbatch_rows, compiled.evaluation_rows);
  compiled.programs =
      partition::programs_of(compiled.graph, compiled.partition, {.device = *compiled.device, .rank = rank});
  return compiled;
}

/// A value for the first element of a parameter.
struct Planted {
  const char* parameter;
  float value;
};

/// What the first step throws on each rank.
std::array<std::string, 2> errors(const std::vector<Planted>& planted) {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder, {"data.batch=3", "data.microbatches=3", "model.tied=false"});
  Wire wire;
  std::array<std::string, 2> errors;
  const std::array<compile::Compiled, 2> ranks = {compile_stage(job, 0), compile_stage(job, 1)};
  const auto run = [&](int rank) {
    const compile::Compiled& compiled = ranks[static_cast<std::size_t>(rank)];
    Member member(wire, rank);
    train::Training training(
        job, compiled, [&](std::int32_t value, std::int32_t) { return agree(wire, rank, value); },
        [&](std::string_view, const std::string& given, const auto& make) {
          return made_of_both(wire, rank, given, make);
        });
    training.executor().bind(member);
    training.initialize();
    for (const Planted& each : planted) {
      const device::TensorView view = training.executor().state(compiled.graph.find_state(each.parameter));
      if (view.elements() > 0) {
        *static_cast<float*>(view.data) = each.value;
      }
    }
    errors[static_cast<std::size_t>(rank)] = error_of([&] { static_cast<void>(training.step(0)); });
    wire.end();
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return errors;
}

constexpr float huge = 3e38F;

}  // namespace

TEST_CASE("two stages with finite numbers report nothing", "[train]") {
  CHECK(errors({}) == std::array<std::string, 2>{"nothing", "nothing"});
}

TEST_CASE("both stages of a pipeline name the first bad tensor, and the rank that made it", "[train]") {
  struct Case {
    std::vector<Planted> planted;
    const char* begin;
    const char* end;
  };
  for (const Case& each : {
           // What the first stage makes overflows; the other receives it.
           Case{{{"layer.0/mlp_norm/gain", huge}}, "layer.0/", " of rank 0, microbatch 0. "},
           // The first stage receives what comes of it in backward, after the forward of microbatch 1.
           Case{{{"layer.1/mlp_norm/gain", huge}}, "layer.1/", " of rank 1, microbatch 0. "},
           Case{{{"layer.0/mlp_norm/gain", huge}, {"layer.1/mlp_norm/gain", huge}},
                "layer.0/",
                " of rank 0, microbatch 0. "},
           // Of a token that microbatch 0 does not have; its backward is past when the first stage comes to it.
           Case{{{"embedding/tokens", huge}}, "layer.0/", " of rank 0, microbatch 1. "},
           // A parameter is looked at before all that is made of it.
           Case{{{"layer.0/mlp_norm/gain", huge}, {"layer.1/mlp_norm/gain", std::numeric_limits<float>::quiet_NaN()}},
                "layer.1/mlp_norm/gain (a parameter)",
                ". The parameters are those of the step before."},
       }) {
    const auto [first, second] = errors(each.planted);
    CHECK_THAT(first,
               Contains(std::string("the first tensor that is not finite: ") + each.begin) && Contains(each.end));
    CHECK(second == first);
  }
}
