// Stages of a pipeline that work at once, each at another call. The ranks are threads.

#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "core/infer/session.h"
#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

constexpr std::int64_t context_of_stages = 24;
constexpr sdk::CacheSizes caches_of_slots = {.pages = 24, .page = 4, .of_sequence = 6};

/// Connects the stages. A message stays in the memory of its sender until it is received, as with a transport that
/// keeps none.
class Connections {
 public:
  struct Message {
    std::span<const std::byte> bytes;
    bool is_received = true;
  };

  void send(const partition::Link& link, Message& message) {
    const std::lock_guard lock(mutex_);
    require(message.is_received);
    message.is_received = false;
    sent_[link].push_back(&message);
    changed_.notify_all();
  }

  void receive(const partition::Link& link, std::span<std::byte> to) {
    std::unique_lock lock(mutex_);
    await(lock, [&] { return !sent_[link].empty(); });
    Message& message = *sent_[link].front();
    sent_[link].pop_front();
    require(message.bytes.size() == to.size());
    std::ranges::copy(message.bytes, to.begin());
    message.is_received = true;
    changed_.notify_all();
  }

  void await_receipt(const Message& message) {
    std::unique_lock lock(mutex_);
    await(lock, [&] { return message.is_received; });
  }

 private:
  static void require(bool holds) {
    if (!holds) {
      throw std::logic_error("a message is not as its receiver expects, or was sent again before it was received");
    }
  }

  template <typename Condition>
  void await(std::unique_lock<std::mutex>& lock, const Condition& condition) {
    if (!changed_.wait_for(lock, std::chrono::minutes(5), condition)) {
      throw std::logic_error("the stages wait for each other");
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<partition::Link, std::deque<Message*>> sent_;
};

/// The messages of one stage.
class OfStage final : public runtime::Communicator {
 public:
  explicit OfStage(Connections& connections) : connections_(connections) {}

  Handle prepare(const partition::Transfer& transfer, const TransferBuffers& buffers, bool) override {
    transfers_.push_back({transfer.link, transfer.collective == partition::Collective::send, buffers, {}});
    return transfers_.size() - 1;
  }
  void start(Handle handle) override {
    Prepared& at = transfers_[handle];
    started.push_back(at.sends ? 's' : 'r');
    if (at.sends) {
      at.message.bytes = {static_cast<const std::byte*>(at.buffers.send), at.buffers.send_bytes};
      connections_.send(at.link, at.message);
    }
  }
  bool test(Handle) override { return true; }
  void wait(Handle handle) override {
    Prepared& at = transfers_[handle];
    if (at.sends) {
      connections_.await_receipt(at.message);
    } else {
      connections_.receive(at.link, {static_cast<std::byte*>(at.buffers.recv), at.buffers.recv_bytes});
    }
  }

  std::string started;  ///< s: a send, r: a receive

 private:
  struct Prepared {
    partition::Link link;
    bool sends = false;
    TransferBuffers buffers;
    Connections::Message message;
  };

  Connections& connections_;
  std::deque<Prepared> transfers_;
};

workload::ModelSettings settings_of_stages() {
  workload::ModelSettings settings = model_settings("llama", {{"layers", "3"},
                                                              {"heads", "4"},
                                                              {"kv_heads", "2"},
                                                              {"width", "16"},
                                                              {"hidden", "20"},
                                                              {"context", "24"},
                                                              {"vocab", "11"}});
  settings.caches = caches_of_slots;
  return settings;
}

plan::Plan plan_of_stages(std::uint32_t stages, bool overlaps) {
  plan::Plan plan = plan_of({{"pipe", stages}}, {});
  plan.pipeline.mesh_axis = "pipe";
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    plan.pipeline.chunks.push_back({.first_layer = stage, .stage = stage});
    plan.pipeline.actions.emplace_back();
  }
  plan.overlaps = overlaps;
  return plan;
}

/// What a rank has drawn for each request, and the transfers that it has started.
struct Answered {
  std::map<std::int64_t, std::vector<std::int32_t>> tokens;
  std::map<std::int64_t, std::vector<float>> logits;
  std::string started;
  bool used_planned_memory = false;
  bool has_stopped = false;
};

void write_parameters(const graph::Graph& graph, const runtime::Executor& executor) {
  const States states = first_states(graph);
  for (const graph::StateId s : states.ids()) {
    if (graph.states[s].kind == graph::StateKind::parameter && executor.state(s).elements() > 0) {
      write_view(states[s], executor.state(s));
    }
  }
}

/// Answers more requests than there are slots, one of which is cancelled. After each step all ranks meet.
Answered answer(const graph::Graph& graph, const workload::DecodingSettings& made, partition::Programs programs,
                Connections& connections, std::barrier<>& meeting) {
  Answered answered;
  runtime::Executor executor(programs, device::Device::find("cpu"));
  OfStage messages(connections);
  executor.bind(messages);
  write_parameters(graph, executor);
  infer::Session session(executor, caches_of_slots, made, context_of_stages);
  const std::vector<std::vector<std::int32_t>> prompts = {
      {7, 2, 9, 10, 3, 1, 1, 8, 4, 5, 5, 6, 1}, {5}, {1, 2, 3, 4}, {7, 2, 9, 10, 3, 1, 1, 8, 2}, {6, 6, 6}, {9, 8}};
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    session.add({.id = static_cast<std::int64_t>(i),
                 .prompt = prompts[i],
                 .tokens = 5 + static_cast<std::int64_t>(i),
                 .sampling = {.temperature = 0}});
  }
  const auto step = [&] {
    session.step({.drawn = [&](const infer::Drawn& drawn) {
      answered.tokens[drawn.id].push_back(drawn.token);
      std::vector<float>& logits = answered.logits[drawn.id];
      logits.insert(logits.end(), drawn.logits.begin(), drawn.logits.end());
      if (drawn.id == 4 && answered.tokens[4].size() == 3) {
        session.cancel(2);
      }
    }});
    meeting.arrive_and_wait();
  };
  while (session.is_busy()) {
    step();
  }
  answered.used_planned_memory = executor.touched_bytes() == programs.memory.peak;
  session.add({.id = 9, .prompt = prompts[0], .tokens = 9});
  for (int steps = 0; steps < 4; ++steps) {
    step();
  }
  session.stop();
  answered.has_stopped = !session.is_busy();
  answered.started = messages.started;
  return answered;
}

std::vector<Answered> answers_of_stages(std::uint32_t stages, bool overlaps) {
  const workload::DecodingSettings made{.slots = 4, .groups = overlaps ? stages : 1, .chunk = 4, .fixed_order = true};
  const graph::Graph graph = workload::build_decoding(find_model("llama"), settings_of_stages(), made);
  const partition::Partition partition = partition::split(graph, plan_of_stages(stages, overlaps));
  Connections connections;
  std::barrier<> meeting(stages);
  std::vector<Answered> answers(stages);
  std::vector<std::jthread> ranks;
  for (std::uint32_t rank = 0; rank < stages; ++rank) {
    ranks.emplace_back([&, rank] {
      answers[rank] = answer(
          graph, made, partition::programs_of(graph, partition, {.device = device::Device::find("cpu"), .rank = rank}),
          connections, meeting);
    });
  }
  ranks.clear();
  return answers;
}

/// The most messages that the first stage has sent and got no answer to.
std::int64_t most_unanswered(const std::string& started) {
  std::int64_t now = 0;
  std::int64_t most = 0;
  for (const char each : started) {
    now += each == 's' ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace

TEST_CASE("each stage of a pipeline works at another call, and draws the same tokens", "[infer]") {
  const Answered alone = answers_of_stages(1, false).front();
  CHECK(alone.tokens.at(3).size() == 8);
  for (const std::uint32_t stages : {2U, 3U}) {
    CAPTURE(stages);
    CHECK(most_unanswered(answers_of_stages(stages, false).front().started) == 1);
    const std::vector<Answered> answers = answers_of_stages(stages, true);
    CHECK(most_unanswered(answers.front().started) == stages);
    for (const Answered& rank : answers) {
      CHECK(rank.tokens == answers.front().tokens);
      CHECK(rank.used_planned_memory);
      CHECK(rank.has_stopped);
      for (const std::int64_t id : {0, 1, 3, 4, 5}) {
        CHECK(rank.logits.at(id) == alone.logits.at(id));
      }
    }
  }
}

TEST_CASE("ranks that draw different tokens have made the same calls when the step ends", "[infer]") {
  const std::uint32_t stages = 2;
  const workload::DecodingSettings made{.slots = 2, .groups = stages, .chunk = 4};
  const graph::Graph graph = workload::build_decoding(find_model("llama"), settings_of_stages(), made);
  const partition::Partition partition = partition::split(graph, plan_of_stages(stages, true));
  Connections connections;
  std::vector<std::vector<std::int64_t>> calls(stages);
  std::vector<std::jthread> ranks;
  for (std::uint32_t rank = 0; rank < stages; ++rank) {
    ranks.emplace_back([&, rank] {
      const partition::Programs programs =
          partition::programs_of(graph, partition, {.device = device::Device::find("cpu"), .rank = rank});
      runtime::Executor executor(programs, device::Device::find("cpu"));
      OfStage messages(connections);
      executor.bind(messages);
      write_parameters(graph, executor);
      infer::Session session(executor, caches_of_slots, made, context_of_stages);
      // Whatever the first token is, it ends the answer on the last rank alone.
      std::vector<std::int64_t> ends(rank == 0 ? 0 : 11);
      std::iota(ends.begin(), ends.end(), 0);
      session.add({.id = 1, .prompt = {7, 2, 9, 10, 3}, .tokens = 6, .ends = ends});
      std::int64_t drawn = 0;
      while (drawn == 0) {
        session.step({.drawn = [&](const infer::Drawn&) { ++drawn; }});
      }
      session.stop();
      for (const infer::Session::Calls& each : session.calls()) {
        calls[rank].push_back(each.calls);
      }
    });
  }
  ranks.clear();
  CHECK(calls[0] == std::vector<std::int64_t>{2});  // of `prefill`
  CHECK(calls[1] == calls[0]);
}
