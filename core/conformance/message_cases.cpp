#include <fmt/format.h>
#include <shardrun/transport.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "core/conformance/member.h"

namespace shardrun::conformance {
namespace {

/// The content of message number `index` with the id `id` from rank `from` to rank `to`. Every third message is empty.
std::vector<float> message(std::uint32_t from, std::uint32_t to, std::uint64_t id, std::uint32_t index,
                           std::uint32_t round) {
  const std::size_t size = (from + to + id + index) % 3 == 0 ? 0 : 1 + 997 * ((from + 2 * to + id) % 4) * (index + 1);
  std::vector<float> text(size);
  for (std::size_t i = 0; i < size; ++i) {
    text[i] = static_cast<float>((from * 1009 + to * 521 + id * 131 + index * 31 + round * 7 + i) % 65'536);
  }
  return text;
}

struct TestMessage {
  std::uint32_t peer = 0;
  std::uint64_t id = 0;
  std::uint32_t index = 0;
  std::vector<float> text = {};
};

/// A batch of sends and receives.
class Batch {
 public:
  explicit Batch(std::uint32_t rank) : rank_(rank) {}

  void send(std::uint32_t peer, std::uint64_t id, std::uint32_t index) {
    sent_.push_back({peer, id, index, message(rank_, peer, id, index, 0)});
    requests_.push_back(request(SR_OP_SEND, sent_.back()));
  }
  void receive(std::uint32_t peer, std::uint64_t id, std::uint32_t index) {
    received_.push_back({peer, id, index, message(peer, rank_, id, index, 0)});
    requests_.push_back(request(SR_OP_RECV, received_.back()));
  }
  /// Sorts requests by id, the largest first. Requests with the same id keep their order.
  void reverse_ids() {
    std::stable_sort(requests_.begin(), requests_.end(),
                     [](const sdk::OpSpec& a, const sdk::OpSpec& b) { return a.id > b.id; });
  }
  [[nodiscard]] const std::vector<sdk::OpSpec>& requests() const noexcept { return requests_; }

  void fill(std::uint32_t round) {
    for (TestMessage& each : sent_) {
      const std::vector<float> text = message(rank_, each.peer, each.id, each.index, round);
      std::copy(text.begin(), text.end(), each.text.begin());
    }
    for (TestMessage& each : received_) {
      std::fill(each.text.begin(), each.text.end(), -1.0F);
    }
  }
  void verify(std::uint32_t round) const {
    for (const TestMessage& each : received_) {
      if (each.text != message(each.peer, rank_, each.id, each.index, round)) {
        throw Failure(
            fmt::format("what member {} sent to member {} with id {}, number {} of them, did not arrive there "
                        "in round {}",
                        each.peer, rank_, each.id, each.index, round));
      }
    }
  }

 private:
  static sdk::OpSpec request(std::uint32_t opcode, TestMessage& message) {
    sdk::OpSpec request;
    request.opcode = opcode;
    request.dtype = SR_DTYPE_F32;
    request.peer = message.peer;
    request.id = message.id;
    request.count = message.text.size();
    request.label = "message";
    (opcode == SR_OP_SEND ? request.send : request.recv) =
        sdk::Buffer{message.text.data(), message.text.size() * sizeof(float)};
    return request;
  }

  std::uint32_t rank_;
  std::deque<TestMessage> sent_;  // requests point to the data in these messages
  std::deque<TestMessage> received_;
  std::vector<sdk::OpSpec> requests_;
};

void run(plugins::TransportOp& op) {
  op.start(after(timeout_s));
  if (!op.wait(after(2 * timeout_s))) {
    throw Failure("a batch of sends and receives does not end");
  }
}

/// Each member sends four messages to each other member, two of them with the same id, and lists its requests in its
/// own order.
void batches(Member& member) {
  MemberGroup& group = member.first(4);
  Batch batch(group.rank);
  for (std::uint32_t turn = 1; turn < 4; ++turn) {
    const std::uint32_t peer = group.rank ^ turn;
    for (const auto& [id, index] : {std::pair{20U, 0U}, {20U, 1U}, {10U, 0U}, {30U, 0U}}) {
      batch.send(peer, id, index);
      batch.receive(peer, id, index);
    }
  }
  if (group.rank % 2 == 1) {
    batch.reverse_ids();
  }
  plugins::TransportOp op = group.group.prepare(batch.requests(), after(timeout_s));
  for (std::uint32_t round = 0; round < 4; ++round) {
    batch.fill(round);
    run(op);
    batch.verify(round);
  }
}

/// Each rank receives from the previous rank, and then sends to the next one, as the stages of a pipeline do.
void pipeline(Member& member) {
  MemberGroup& group = member.first(4);
  Batch from(group.rank);
  Batch to(group.rank);
  if (group.rank > 0) {
    from.receive(group.rank - 1, 40, 1);
  }
  if (group.rank < 3) {
    to.send(group.rank + 1, 40, 1);
  }
  std::vector<plugins::TransportOp> ops;
  for (const Batch* batch : {&from, &to}) {
    if (!batch->requests().empty()) {
      ops.push_back(group.group.prepare(batch->requests(), after(timeout_s)));
    }
  }
  for (std::uint32_t round = 0; round < 10; ++round) {
    from.fill(round);
    to.fill(round);
    for (plugins::TransportOp& op : ops) {
      run(op);
    }
    from.verify(round);
  }
}

/// Some messages are sent before their receive starts, others after.
void early_and_late(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup& group = member.first(2);
  for (std::uint32_t early = 0; early < 2; ++early) {
    Batch batch(group.rank);
    if (group.rank == 0) {
      batch.send(1, 50 + early, 1);
    } else {
      batch.receive(0, 50 + early, 1);
    }
    plugins::TransportOp op = group.group.prepare(batch.requests(), after(timeout_s));
    const std::string barrier = fmt::format("early {}", early);
    batch.fill(3);
    if (group.rank == early) {
      op.start(after(timeout_s));
      if (op.wait(after(0.02)) && group.rank == 1) {
        throw Failure("a receive was complete before anything was sent");
      }
      member.meet(barrier, 2);
    } else {
      member.meet(barrier, 2);
      op.start(after(timeout_s));
    }
    if (!op.wait(after(2 * timeout_s))) {
      throw Failure("a message never arrives");
    }
    batch.verify(3);
  }
}

/// Pairs exchange messages while the whole group runs a collective.
void during_collectives(Member& member) {
  MemberGroup& group = member.first(4);
  Batch batch(group.rank);
  const std::uint32_t peer = group.rank ^ 1U;
  batch.send(peer, 60, 2);
  batch.receive(peer, 60, 2);
  plugins::TransportOp messages = group.group.prepare(batch.requests(), after(timeout_s));
  std::vector<double> sums(5000);
  sdk::OpSpec request;
  request.opcode = SR_OP_ALL_REDUCE;
  request.dtype = SR_DTYPE_F64;
  request.reduction = SR_REDUCE_SUM;
  request.id = 61;
  request.count = sums.size();
  request.send = sdk::Buffer{sums.data(), sums.size() * sizeof(double)};
  request.recv = request.send;
  plugins::TransportOp sum = group.group.prepare({request}, after(timeout_s));
  for (std::uint32_t round = 0; round < 5; ++round) {
    std::fill(sums.begin(), sums.end(), group.rank + round);
    batch.fill(round);
    messages.start(after(timeout_s));
    sum.start(after(timeout_s));
    if (!sum.wait(after(timeout_s)) || !messages.wait(after(timeout_s))) {
      throw Failure("messages and a collective under way at once do not both end");
    }
    batch.verify(round);
    if (sums != std::vector<double>(sums.size(), 6 + 4 * round)) {
      throw Failure("a collective has a wrong result while messages are under way");
    }
  }
}

}  // namespace

void add_message_cases(std::vector<Case>& cases) {
  cases.push_back({.name = "batches of sends and receives", .run = batches});
  cases.push_back({.name = "a pipeline of sends and receives", .run = pipeline});
  cases.push_back({.name = "a send before and after its receive", .run = early_and_late});
  cases.push_back({.name = "sends and receives during collectives", .run = during_collectives});
}

}  // namespace shardrun::conformance
