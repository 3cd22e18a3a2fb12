// A transport that implements the whole C table. It passes every call to another transport, measures the time of every
// op, and at the end logs which op took the longest.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tcp_link.h"

namespace {

using namespace shardrun::sdk;

struct Total {
  std::string what;
  std::uint64_t times = 0;
  std::int64_t nanoseconds = 0;
};

/// Times of the ops of all groups. Several threads wait for ops.
class Totals {
 public:
  void add(std::string_view what, std::uint64_t times, std::int64_t nanoseconds) {
    const std::lock_guard lock(mutex_);
    const auto same =
        std::find_if(totals_.begin(), totals_.end(), [&](const Total& each) { return each.what == what; });
    Total& total = same != totals_.end() ? *same : totals_.emplace_back(Total{std::string(what)});
    total.times += times;
    total.nanoseconds += nanoseconds;
  }

  [[nodiscard]] std::optional<Total> longest() {
    const std::lock_guard lock(mutex_);
    const auto most = std::max_element(totals_.begin(), totals_.end(),
                                       [](const Total& a, const Total& b) { return a.nanoseconds < b.nanoseconds; });
    return most != totals_.end() ? std::optional(*most) : std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::vector<Total> totals_;
};

class TimedOp final : public Op {
 public:
  TimedOp(std::unique_ptr<Op> op, std::string what, std::shared_ptr<Totals> totals)
      : op_(std::move(op)), what_(std::move(what)), totals_(std::move(totals)) {}
  ~TimedOp() override { totals_->add(what_, times_, nanoseconds_); }

  void start(void* queue, Deadline deadline) override {
    began_ = monotonic_now();
    op_->start(queue, deadline);
  }
  /// Not timed, because it is not known when the queue reaches the op.
  void enqueue(const Queue& queue, std::chrono::nanoseconds timeout) override {
    began_ = 0;
    op_->enqueue(queue, timeout);
  }
  void join(const Queue& queue) override { op_->join(queue); }
  bool test() override { return noted(op_->test()); }
  bool wait(Deadline deadline) override { return noted(op_->wait(deadline)); }

 private:
  bool noted(bool complete) noexcept {
    if (complete && began_ != 0) {
      nanoseconds_ += monotonic_now() - std::exchange(began_, 0);
      ++times_;
    }
    return complete;
  }

  std::unique_ptr<Op> op_;
  std::string what_;
  std::shared_ptr<Totals> totals_;
  std::int64_t began_ = 0;  ///< 0: not running, or not timed
  std::int64_t nanoseconds_ = 0;
  std::uint64_t times_ = 0;
};

class TimedGroup final : public Group {
 public:
  TimedGroup(std::unique_ptr<Group> group, std::shared_ptr<Totals> totals)
      : group_(std::move(group)), totals_(std::move(totals)) {}

  std::unique_ptr<Op> prepare(std::span<const OpSpec> ops, Deadline deadline) override {
    return std::make_unique<TimedOp>(group_->prepare(ops, deadline), describe(ops[0]), totals_);
  }
  void abort(std::string_view reason) noexcept override { group_->abort(reason); }
  std::optional<TransportError> error() override { return group_->error(); }

 private:
  std::unique_ptr<Group> group_;
  std::shared_ptr<Totals> totals_;
};

class Timed {
 public:
  explicit Timed(Host host) : host_(host) {}

  Props props() const { return wire_.props(); }

  /// The inner transport does sends, receives and reductions. The host makes the rest of sends and receives.
  std::optional<OpInfo> query(const OpSpec& op, std::uint32_t group_size) const {
    const OpcodeTraits& traits = *find_opcode(op.opcode);
    return traits.collective && !traits.reduces ? std::nullopt : wire_.query(op, group_size);
  }

  void open(const Config& config) { wire_.open(config); }

  void close() {
    if (const std::optional<Total> longest = totals_->longest()) {
      host_.info("longest under way: " + longest->what + ", " + std::to_string(longest->times) + " times, " +
                 std::to_string(longest->nanoseconds / 1'000'000) + " ms in all");
    }
    wire_.close();
  }

  std::uint64_t wire_bytes() const { return wire_.wire_bytes(); }
  std::uint64_t mem_register(const sr_memory& memory) { return wire_.mem_register(memory); }
  void mem_deregister(std::uint64_t registration) { wire_.mem_deregister(registration); }

  std::unique_ptr<Group> group(const GroupSpec& spec) {
    return std::make_unique<TimedGroup>(wire_.group(spec), totals_);
  }

 private:
  Host host_;
  TwoFunctionTransport<my_plugins::TcpLink> wire_;
  std::shared_ptr<Totals> totals_ = std::make_shared<Totals>();
};

}  // namespace

SHARDRUN_EXPORT_TRANSPORT(Timed, "timed", "1.0")
