#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "plugins/conformance/cases.h"
#include "plugins/conformance/values.h"

namespace shardrun::conformance {
namespace {

/// What `from` writes to `to`, as the `place`th letter with that id. Every third is empty.
std::vector<float> letter(std::uint32_t from, std::uint32_t to, std::uint64_t id, std::uint32_t place,
                          std::uint32_t round) {
  const std::size_t size = (from + to + id + place) % 3 == 0 ? 0 : 1 + 997 * ((from + 2 * to + id) % 4) * (place + 1);
  std::vector<float> text(size);
  for (std::size_t i = 0; i < size; ++i) {
    text[i] = static_cast<float>((from * 1009 + to * 521 + id * 131 + place * 31 + round * 7 + i) % 65'536);
  }
  return text;
}

struct Letter {
  std::uint32_t peer = 0;
  std::uint64_t id = 0;
  std::uint32_t place = 0;
  std::vector<float> text = {};
};

/// A batch of sends and receives.
class Post {
 public:
  explicit Post(std::uint32_t rank) : rank_(rank) {}

  void send(std::uint32_t peer, std::uint64_t id, std::uint32_t place) {
    sent_.push_back({peer, id, place, letter(rank_, peer, id, place, 0)});
    requests_.push_back(request(SR_OP_SEND, sent_.back()));
  }
  void receive(std::uint32_t peer, std::uint64_t id, std::uint32_t place) {
    received_.push_back({peer, id, place, letter(peer, rank_, id, place, 0)});
    requests_.push_back(request(SR_OP_RECV, received_.back()));
  }
  /// Letters with one id keep their order, others may change theirs.
  void reverse_ids() {
    std::stable_sort(requests_.begin(), requests_.end(),
                     [](const plugins::OpRequest& a, const plugins::OpRequest& b) { return a.id > b.id; });
  }
  [[nodiscard]] const std::vector<plugins::OpRequest>& requests() const noexcept { return requests_; }

  void fill(std::uint32_t round) {
    for (Letter& each : sent_) {
      const std::vector<float> text = letter(rank_, each.peer, each.id, each.place, round);
      std::copy(text.begin(), text.end(), each.text.begin());
    }
    for (Letter& each : received_) {
      std::fill(each.text.begin(), each.text.end(), -1.0F);
    }
  }
  void verify(std::uint32_t round) const {
    for (const Letter& each : received_) {
      if (each.text != letter(each.peer, rank_, each.id, each.place, round)) {
        throw Failure(
            fmt::format("what member {} sent to member {} with id {}, number {} of them, did not arrive there "
                        "in round {}",
                        each.peer, rank_, each.id, each.place, round));
      }
    }
  }

 private:
  static plugins::OpRequest request(std::uint32_t opcode, Letter& letter) {
    plugins::OpRequest request;
    request.opcode = opcode;
    request.dtype = SR_DTYPE_F32;
    request.peer = letter.peer;
    request.id = letter.id;
    request.count = letter.text.size();
    request.label = "letter";
    (opcode == SR_OP_SEND ? request.send : request.recv) =
        plugins::HostBuffer{letter.text.data(), letter.text.size() * sizeof(float)};
    return request;
  }

  std::uint32_t rank_;
  std::deque<Letter> sent_;  // requests point to their texts
  std::deque<Letter> received_;
  std::vector<plugins::OpRequest> requests_;
};

void run(plugins::TransportOp& op) {
  op.start(after(patience_s));
  if (!op.wait(after(2 * patience_s))) {
    throw Failure("a batch of sends and receives does not end");
  }
}

/// Everyone to everyone, four letters each, two of them with one id; each member lists them in an order of its own.
void batches(Member& member) {
  MemberGroup& group = member.first(4);
  Post post(group.rank);
  for (std::uint32_t turn = 1; turn < 4; ++turn) {
    const std::uint32_t peer = group.rank ^ turn;
    for (const auto& [id, place] : {std::pair{20U, 0U}, {20U, 1U}, {10U, 0U}, {30U, 0U}}) {
      post.send(peer, id, place);
      post.receive(peer, id, place);
    }
  }
  if (group.rank % 2 == 1) {
    post.reverse_ids();
  }
  plugins::TransportOp op = group.group.prepare(post.requests(), after(patience_s));
  for (std::uint32_t round = 0; round < 4; ++round) {
    post.fill(round);
    run(op);
    post.verify(round);
  }
}

/// One letter after the other, as between the stages of a pipeline.
void pipeline(Member& member) {
  MemberGroup& group = member.first(4);
  Post from(group.rank);
  Post to(group.rank);
  if (group.rank > 0) {
    from.receive(group.rank - 1, 40, 1);
  }
  if (group.rank < 3) {
    to.send(group.rank + 1, 40, 1);
  }
  std::vector<plugins::TransportOp> ops;
  for (const Post* post : {&from, &to}) {
    if (!post->requests().empty()) {
      ops.push_back(group.group.prepare(post->requests(), after(patience_s)));
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

/// What is sent is received later, and what is received was asked for before it was sent.
void early_and_late(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup& group = member.first(2);
  for (std::uint32_t early = 0; early < 2; ++early) {
    Post post(group.rank);
    if (group.rank == 0) {
      post.send(1, 50 + early, 1);
    } else {
      post.receive(0, 50 + early, 1);
    }
    plugins::TransportOp op = group.group.prepare(post.requests(), after(patience_s));
    const std::string place = fmt::format("early {}", early);
    post.fill(3);
    if (group.rank == early) {
      op.start(after(patience_s));
      if (op.wait(after(0.02)) && group.rank == 1) {
        throw Failure("a receive was complete before anything was sent");
      }
      member.meet(place, 2);
    } else {
      member.meet(place, 2);
      op.start(after(patience_s));
    }
    if (!op.wait(after(2 * patience_s))) {
      throw Failure("a letter never arrives");
    }
    post.verify(3);
  }
}

/// Pairs exchange letters while the whole group is in a collective.
void beside_collectives(Member& member) {
  MemberGroup& group = member.first(4);
  Post post(group.rank);
  const std::uint32_t peer = group.rank ^ 1U;
  post.send(peer, 60, 2);
  post.receive(peer, 60, 2);
  plugins::TransportOp letters = group.group.prepare(post.requests(), after(patience_s));
  std::vector<double> sums(5000);
  plugins::OpRequest request;
  request.opcode = SR_OP_ALL_REDUCE;
  request.dtype = SR_DTYPE_F64;
  request.reduction = SR_REDUCE_SUM;
  request.id = 61;
  request.count = sums.size();
  request.send = plugins::HostBuffer{sums.data(), sums.size() * sizeof(double)};
  request.recv = request.send;
  plugins::TransportOp sum = group.group.prepare({request}, after(patience_s));
  for (std::uint32_t round = 0; round < 5; ++round) {
    std::fill(sums.begin(), sums.end(), group.rank + round);
    post.fill(round);
    letters.start(after(patience_s));
    sum.start(after(patience_s));
    if (!sum.wait(after(patience_s)) || !letters.wait(after(patience_s))) {
      throw Failure("letters and a collective under way at once do not both end");
    }
    post.verify(round);
    if (sums != std::vector<double>(sums.size(), 6 + 4 * round)) {
      throw Failure("a collective beside letters has a wrong result");
    }
  }
}

}  // namespace

void add_letter_cases(std::vector<Case>& cases) {
  cases.push_back({.name = "batches of sends and receives", .run = batches});
  cases.push_back({.name = "a pipeline of sends and receives", .run = pipeline});
  cases.push_back({.name = "a send before and after its receive", .run = early_and_late});
  cases.push_back({.name = "sends and receives beside collectives", .run = beside_collectives});
}

}  // namespace shardrun::conformance
