#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/conformance/member.h"
#include "core/conformance/trial.h"

namespace shardrun::conformance {
namespace {

/// Large enough that other events can happen while the op runs. ThreadSanitizer makes accesses about ten times as slow.
#if defined(SHARDRUN_TSAN)
constexpr std::uint64_t lent_elements = 3 << 17;
#else
constexpr std::uint64_t lent_elements = 3 << 20;
#endif

/// A message from rank 0 to rank 1 and, optionally, one of equal size back. Has the functions of Trial.
class Exchange {
 public:
  Exchange(Member& member, MemberGroup& group, bool both_ways)
      : rank_(group.rank),
        send_(rank_ == 0 || both_ways ? std::optional(member.registered(lent_bytes)) : std::nullopt),
        recv_(rank_ == 1 || both_ways ? std::optional(member.registered(lent_bytes)) : std::nullopt),
        op_(group.group.prepare(requests(), after(timeout_s))) {}

  void fill(std::uint32_t round) {
    round_ = round;
    if (send_) {
      std::fill_n(static_cast<float*>(send_->data), lent_elements, value(rank_));
    }
    if (recv_) {
      std::fill_n(static_cast<float*>(recv_->data), lent_elements, -1.0F);
    }
  }
  void start() { op_.start(after(timeout_s)); }
  void wait() { require(op_.wait(after(2 * timeout_s)), "an exchange does not end"); }
  void verify() const {
    const float sent = value(1 - rank_);
    const auto* received = recv_ ? static_cast<const float*>(recv_->data) : nullptr;
    require(!recv_ || std::all_of(received, received + lent_elements, [&](float each) { return each == sent; }),
            "another message was received than had been sent");
  }

  [[nodiscard]] plugins::TransportOp& op() noexcept { return op_; }
  [[nodiscard]] std::vector<sdk::Buffer> buffers() const {
    std::vector<sdk::Buffer> all;
    for (const std::optional<sdk::Buffer>& each : {send_, recv_}) {
      if (each) {
        all.push_back(*each);
      }
    }
    return all;
  }

 private:
  static constexpr std::size_t lent_bytes = lent_elements * sizeof(float);

  [[nodiscard]] float value(std::uint32_t rank) const noexcept { return static_cast<float>(10 * (round_ + 1) + rank); }

  [[nodiscard]] std::vector<sdk::OpSpec> requests() const {
    std::vector<sdk::OpSpec> requests;
    for (const std::uint32_t opcode : {SR_OP_SEND, SR_OP_RECV}) {
      const std::optional<sdk::Buffer>& buffer = opcode == SR_OP_SEND ? send_ : recv_;
      if (buffer) {
        sdk::OpSpec& request = requests.emplace_back();
        request.opcode = opcode;
        request.dtype = SR_DTYPE_F32;
        request.peer = 1 - rank_;
        request.id = 1;
        request.count = lent_elements;
        (opcode == SR_OP_SEND ? request.send : request.recv) = buffer;
      }
    }
    return requests;
  }

  std::uint32_t rank_;
  std::optional<sdk::Buffer> send_;
  std::optional<sdk::Buffer> recv_;
  std::uint32_t round_ = 0;
  plugins::TransportOp op_;
};

constexpr auto canary = std::byte{0x33};

/// Overwrites the memory from its end, which a concurrent reader has probably not reached yet.
void overwrite(const std::vector<sdk::Buffer>& buffers) {
  constexpr std::size_t stretch = std::size_t{64} << 10U;
  for (const sdk::Buffer& each : buffers) {
    for (std::size_t end = each.bytes; end != 0;) {
      const std::size_t begin = end - std::min(end, stretch);
      std::memset(static_cast<std::byte*>(each.data) + begin, static_cast<int>(canary), end - begin);
      end = begin;
    }
  }
}

bool is_overwritten(const std::vector<sdk::Buffer>& buffers) {
  return std::all_of(buffers.begin(), buffers.end(), [](const sdk::Buffer& each) {
    const auto* bytes = static_cast<const std::byte*>(each.data);
    return bytes[0] == canary && std::memcmp(bytes, bytes + 1, each.bytes - 1) == 0;
  });
}

/// Times as multiples of the op's usual duration, so that some aborts come while data moves, on any machine.
/// `head_start`: how long rank 0 runs the op before rank 1 starts it. `patience`: how long until rank 0 aborts it.
struct Parting {
  double head_start = 0;
  double patience = 0;
};

constexpr std::array<Parting, 6> partings = {{{0, 0}, {0, 0.25}, {0, 0.5}, {0, 0.75}, {0.25, 1}, {4, 0.5}}};

void sleep_for(double ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<std::int64_t>(ns))); }

/// Starts the op and waits for it. Returns false if it failed.
template <class Given>
bool goes_well(Given& given) {
  try {
    given.start();
    given.wait();
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Runs an op twice and starts it again. Then rank 0 frees the op, possibly while rank 1 still runs it, and overwrites
/// its memory. Throws Failure if that memory changes later. When this returns, no rank runs the op any more.
template <class Given>
void reuse_memory(Member& member, MemberGroup& doomed, Given& given, const Parting& parting, const std::string& place,
                  const std::string& name) {
  double usual_ns = 0;  // the first run is slower than later ones
  given.fill(0);
  for (std::uint32_t round = 0; round < 2; ++round) {
    member.meet(fmt::format("{}, round {}", place, round), 2);
    const std::int64_t begin = plugins::transport_clock();
    given.start();
    given.wait();
    usual_ns = static_cast<double>(plugins::transport_clock() - begin);
  }
  given.fill(1);
  member.meet(place + ", the last round", 2);
  if (member.rank() == 0) {
    std::jthread other([&] {
      sleep_for(parting.patience * usual_ns);
      doomed.group.abort("rank 0 needs the memory");
    });
    (void)goes_well(given);
    other.join();
    { const plugins::TransportOp freed = std::move(given.op()); }
    overwrite(given.buffers());
    member.tell(place + ", overwritten", "");
  } else {
    // Acts as rank 1's host, which aborts the group once a rank has reported a failure, because rank 1 need not notice
    // by itself. Until then, rank 1 might go on with what rank 0 has written.
    std::jthread host([&] {
      try {
        (void)member.hear(place + ", overwritten", 0);
        sleep_for(10e6);
      } catch (const Failure&) {
        // Rank 0 reports the failure.
      }
      doomed.group.abort("rank 0 has given up");
    });
    sleep_for(parting.head_start * usual_ns);
    const bool is_complete = goes_well(given);
    host.join();
    if (is_complete) {
      given.verify();
    }
  }
  member.meet(place + ", the end", 2);
  require(member.rank() == 1 || is_overwritten(given.buffers()),
          name + ": memory was written to after the op was freed that it had been lent to");
}

/// Calls reuse_memory() on ranks 0 and 1 with each of `partings`, in a new group. `prepare`: makes the op. The other
/// ranks meet them after each call, because waiting for all calls could exceed the timeout.
template <class Prepare>
void part_each_way(Member& member, std::uint64_t first_id, const std::string& what, Prepare prepare) {
  for (std::size_t i = 0; i < partings.size(); ++i) {
    const std::uint64_t id = first_id + i;
    if (member.rank() < 2) {
      MemberGroup doomed = member.connect("given up", id, {0, 1});
      auto given = prepare(doomed);
      reuse_memory(member, doomed, given, partings[i], fmt::format("op of group {}", id),
                   fmt::format("{}, aborted at {} of its usual time, where rank 1 begins with it at {}", what,
                               partings[i].patience, partings[i].head_start));
    }
    member.forget();
    member.meet(fmt::format("group {} is over", id), member.world_size());
  }
}

void collective_after_abort(Member& member) {
  const auto part = [&](std::uint64_t first_id, const std::string& what, std::uint32_t opcode) {
    const Shape shape = {.opcode = opcode, .members = 2, .count = lent_elements};
    part_each_way(member, first_id, what, [&](MemberGroup& group) { return Trial(member, group, shape, {}, 1); });
  };
  part(300, "a sum", SR_OP_ALL_REDUCE);
  part(310, "a broadcast", SR_OP_BROADCAST);
}

void messages_after_abort(Member& member) {
  const auto part = [&](std::uint64_t first_id, const std::string& what, bool both_ways) {
    part_each_way(member, first_id, what, [&](MemberGroup& group) { return Exchange(member, group, both_ways); });
  };
  part(320, "a message", false);
  part(330, "messages both ways", true);
}

}  // namespace

void add_memory_cases(std::vector<Case>& cases) {
  cases.push_back({.name = "the memory of an op freed after an abort", .run = collective_after_abort});
  cases.push_back({.name = "the memory of a send or receive freed after an abort", .run = messages_after_abort});
}

}  // namespace shardrun::conformance
