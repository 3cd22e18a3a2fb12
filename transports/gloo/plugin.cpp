#include <arpa/inet.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <shardrun/sdk/transport.hpp>
#include <shardrun/sdk/transport/agreement.hpp>
#include <shardrun/sdk/transport/collectives.hpp>
#include <shardrun/sdk/transport/lone_group.hpp>
#include <shardrun/sdk/transport/worker.hpp>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transports/gloo/connect.h"
#include "transports/gloo/waits.h"

namespace shardrun::gloo_transport {
namespace {

using sdk::OpSpec;
using sdk::TransportError;
using GlooBuffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

/// Blocks SIGPIPE on this thread while it lives. Gloo writes to sockets without MSG_NOSIGNAL, so a peer that died would
/// end this process. A thread that is started meanwhile inherits the mask and keeps it. The signal's action in the
/// process is left to the host.
class NoSigpipe {
 public:
  NoSigpipe() noexcept {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;
  ~NoSigpipe() {
    const timespec at_once = {0, 0};
    while (sigismember(&before_, SIGPIPE) == 0 && sigtimedwait(&pipe_, nullptr, &at_once) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_ = {};
  sigset_t before_ = {};
};

/// Kinds of messages that this transport itself sends: the top bits of a slot's number. The slots of Gloo's own
/// collectives have larger numbers, so the two never match.
enum class Channel : std::uint64_t { agreement = 1, collective, message };

/// The number of a slot. Gloo matches a send with the receive of the same slot; those of one slot match in order.
std::uint64_t slot_of(Channel channel, std::uint64_t number) noexcept {
  constexpr unsigned bits = 52;
  return static_cast<std::uint64_t>(channel) << bits | (number & ((std::uint64_t{1} << bits) - 1));
}

/// The slot of a message, made from its id and size. Gloo ends the process if a message is larger than its receive.
/// With the size in the slot, a message of another size never matches, and the receive waits until its deadline.
std::uint64_t slot_of_message(std::uint64_t id, std::uint64_t bytes) noexcept {
  std::uint64_t mixed = id * 0x9E3779B97F4A7C15U + bytes;
  mixed = (mixed ^ mixed >> 32U) * 0xD6E8FEB86659FD93U;
  return slot_of(Channel::message, mixed ^ mixed >> 32U);
}

/// Stages of Gloo's sends and receives.
class Stages {
 public:
  /// The stages of the SDK's schedule for a collective. `tag`: see GlooCall.
  Stages(gloo::Context& context, const OpSpec& op, std::uint32_t tag) : Stages(op) {
    const sdk::Schedule schedule =
        schedule_of(op, static_cast<std::uint32_t>(context.rank), static_cast<std::uint32_t>(context.size));
    require_scratch(op, schedule);
    buffers_ = sdk::OpBuffers(op, schedule.dtype);
    const auto transfers = [&](const std::vector<sdk::Movement>& movements) {
      std::vector<Transfer> made;
      for (const sdk::Movement& each : movements) {
        made.push_back({static_cast<int>(each.peer), slot_of(Channel::collective, std::uint64_t{tag} << 20U | each.tag),
                        context.createUnboundBuffer(buffers_.data(each.region), buffers_.bytes(each.region))});
      }
      return made;
    };
    for (const sdk::ScheduleStage& stage : schedule.stages) {
      stages_.push_back({transfers(stage.sends), transfers(stage.receives), stage.steps});
    }
  }
  /// The single stage of a batch.
  Stages(gloo::Context& context, std::span<const OpSpec> ops) : Stages(ops[0]) {
    Stage& stage = stages_.emplace_back();
    for (const OpSpec& op : ops) {
      const bool sends = op.opcode == SR_OP_SEND;
      if (const std::uint64_t bytes = op.count * sdk::dtype_size(op.dtype); bytes != 0) {
        (sends ? stage.sends : stage.receives)
            .push_back({static_cast<int>(op.peer), slot_of_message(op.id, bytes),
                        context.createUnboundBuffer(sends ? op.send->data : op.recv->data, bytes)});
      }
    }
  }

  void run(std::chrono::milliseconds limit) const {
    for (const Stage& stage : stages_) {
      for (const Transfer& each : stage.receives) {
        each.buffer->recv(each.peer, each.slot);
      }
      for (const Transfer& each : stage.sends) {
        each.buffer->send(each.peer, each.slot);
      }
      for (const Transfer& each : stage.receives) {
        each.buffer->waitRecv(limit);
      }
      for (const Transfer& each : stage.sends) {
        each.buffer->waitSend(limit);
      }
      for (const sdk::LocalStep& step : stage.steps) {
        buffers_.run(step);
      }
    }
  }

 private:
  struct Transfer {
    int peer = 0;
    std::uint64_t slot = 0;
    GlooBuffer buffer;
  };
  struct Stage {
    std::vector<Transfer> sends = {};
    std::vector<Transfer> receives = {};
    std::vector<sdk::LocalStep> steps = {};
  };

  explicit Stages(const OpSpec& op) : buffers_(op, op.dtype) {}

  sdk::OpBuffers buffers_;
  std::vector<Stage> stages_;
};

/// An op that runs on its group's thread.
class GlooOp final : public sdk::Op, private sdk::Worker::Task {
 public:
  using Act = std::function<void(std::chrono::milliseconds limit)>;

  GlooOp(sdk::Worker& worker, const OpSpec& op, Act act) : worker_(worker), what_(describe(op)), act_(std::move(act)) {}
  ~GlooOp() override { worker_.drop(*this); }

  void start(void*, sdk::Deadline deadline) override { worker_.start(*this, deadline); }
  bool test() override { return worker_.test(*this); }
  bool wait(sdk::Deadline deadline) override { return worker_.wait(*this, deadline); }
  std::optional<sdk::OpTimes> times() const override { return worker_.times(*this); }

 private:
  void run(sdk::Deadline deadline) override {
    try {
      act_(limit_of(deadline));
    } catch (const TransportError& error) {
      throw error.within(what_);
    }
  }
  [[nodiscard]] std::string what() const override { return what_; }

  sdk::Worker& worker_;
  std::string what_;
  Act act_;
};

/// Elements of scratch, to which Gloo writes on members other than the root.
std::uint64_t scratch_of_gloo(const OpSpec& op) { return op.opcode == SR_OP_REDUCE ? op.count : 0; }

/// A group of more than one member: its connections, and the thread that uses them.
class GlooGroup final : public sdk::Group {
 public:
  /// REQUIRES: SIGPIPE is blocked, so that the group's threads inherit that.
  GlooGroup(const sdk::Config& config, const sdk::GroupSpec& spec, const Device& device, std::uint64_t generation,
            std::atomic<std::uint64_t>& wire_bytes)
      : rank_(spec.rank),
        n_(spec.size()),
        segment_bytes_(static_cast<std::size_t>(config.options.integer("chunk")) << 10U),
        waits_(spec, config.host),
        worker_([this] { waits_.fail(); }) {
    try {
      context_ = connect(config, spec, generation, device, waits_, wire_bytes);
      // A connection is complete on one side before the other, and Gloo ends the process if it breaks in between. So
      // each member hears from all others before anyone can leave.
      std::vector<char> words(n_);
      const auto word = [&](std::uint32_t member) { return &words[member]; };
      exchange(
          0, 1, word, [&](std::uint32_t) { return word(rank_); }, spec.deadline);
    } catch (const TransportError& error) {
      throw error.within("connecting the group '" + spec.name + "'");
    }
  }

  std::unique_ptr<sdk::Op> prepare(std::span<const OpSpec> ops, sdk::Deadline deadline) override {
    const OpSpec& first = ops[0];
    if (!sdk::find_opcode(first.opcode)->collective) {
      return op_of(first, std::make_shared<Stages>(*context_, ops));
    }
    agree(first, deadline);
    const std::uint32_t tag = agreed_++;
    if (!gloo_has(first, n_)) {
      return op_of(first, std::make_shared<Stages>(*context_, first, tag));
    }
    if (rank_ != first.peer) {
      require_scratch(first, {.dtype = first.dtype, .scratch_elements = scratch_of_gloo(first), .stages = {}});
    }
    return std::make_unique<GlooOp>(worker_, first, [this, first, tag](std::chrono::milliseconds limit) {
      run_by_gloo(first, {.context = context_, .tag = tag, .segment_bytes = segment_bytes_, .limit = limit});
    });
  }

  void abort(std::string_view reason) noexcept override { worker_.fail({SR_ABORTED, std::string(reason)}); }
  std::optional<TransportError> error() override { return worker_.failure(); }

 private:
  /// Gloo ends the process if a message is larger than its receive. So no byte of a collective moves before all members
  /// have agreed on the op. The agreement is not queued behind running ops, because members may prepare and run them in
  /// different orders.
  void agree(const OpSpec& op, sdk::Deadline deadline) {
    if (const std::optional<TransportError> failure = worker_.failure()) {
      throw TransportError(*failure);
    }
    const NoSigpipe no_sigpipe;
    sdk::Agreement agreement(op, rank_, n_);
    try {
      for (std::uint32_t round = 0; round < sdk::Agreement::rounds; ++round) {
        exchange(
            1 + round, agreement.bytes(round), [&](std::uint32_t peer) { return agreement.incoming(round, peer); },
            [&](std::uint32_t peer) { return agreement.outgoing(round, peer); }, deadline);
        agreement.conclude(round);
      }
    } catch (const TransportError& error) {
      worker_.fail(error.within("preparing " + describe(op)));
      throw TransportError(*worker_.failure());
    }
    if (const auto& why = agreement.difference()) {
      throw TransportError(SR_INVALID, *why);
    }
  }

  /// Sends `bytes` bytes to every other member and receives as many from each.
  template <class Incoming, class Outgoing>
  void exchange(std::uint32_t round, std::size_t bytes, Incoming incoming, Outgoing outgoing, sdk::Deadline deadline) {
    const std::uint64_t slot = slot_of(Channel::agreement, round);
    std::vector<GlooBuffer> buffers;
    for (std::uint32_t distance = 1; distance < n_; ++distance) {
      const std::uint32_t peer = (rank_ + distance) % n_;
      buffers.push_back(context_->createUnboundBuffer(incoming(peer), bytes));
      buffers.back()->recv(static_cast<int>(peer), slot);
      buffers.push_back(context_->createUnboundBuffer(outgoing(peer), bytes));
      buffers.back()->send(static_cast<int>(peer), slot);
    }
    for (std::size_t i = 0; i < buffers.size(); i += 2) {
      buffers[i]->waitRecv(limit_of(deadline));
      buffers[i + 1]->waitSend(limit_of(deadline));
    }
  }

  std::unique_ptr<sdk::Op> op_of(const OpSpec& op, std::shared_ptr<const Stages> stages) {
    return std::make_unique<GlooOp>(
        worker_, op, [stages = std::move(stages)](std::chrono::milliseconds limit) { stages->run(limit); });
  }

  std::uint32_t rank_;
  std::uint32_t n_;
  std::size_t segment_bytes_;
  Waits waits_;
  std::shared_ptr<gloo::Context> context_;
  std::uint32_t agreed_ = 0;  ///< collectives agreed so far
  sdk::Worker worker_;        // destroyed first, because its thread uses the members above
};

bool is_loopback(const std::string& address) {
  in_addr four = {};
  in6_addr six = {};
  return (::inet_pton(AF_INET, address.c_str(), &four) == 1 && ntohl(four.s_addr) >> 24U == 127) ||
         (::inet_pton(AF_INET6, address.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six));
}

/// The library Gloo: TCP connections between all members of each group, and Gloo's collectives. Listeners bind to the
/// address that the host gives, or else to the loopback interface.
class GlooTransport {
 public:
  static std::vector<sdk::Option> options() {
    auto trusted = sdk::boolean_option("trusted", false,
                                       "ranks may connect over a network: everyone on it is trusted, since Gloo "
                                       "encrypts nothing, and its listeners take anyone for a rank");
    trusted.other_names = {{.name = "protect", .note = "Gloo protects nothing; transport tcp encrypts"}};
    return {
        sdk::integer_option("chunk", 1024, 8, 1 << 20, "KiB of a sum that are sent, received and reduced at a time"),
        std::move(trusted)};
  }

  sdk::Props props() const { return {}; }

  std::optional<sdk::OpInfo> query(const OpSpec& op, std::uint32_t group_size) const {
    if (group_size == 1) {
      return sdk::OpInfo{.flags = SR_OP_INFO_ORDERED | SR_OP_INFO_STEPWISE | SR_OP_INFO_ROUNDED_ONCE};
    }
    if (gloo_has(op, group_size)) {  // Gloo adds in the order of its rings, not of the members
      return sdk::OpInfo{.flags = SR_OP_INFO_ASYNC | SR_OP_INFO_NATIVE |
                                  (sdk::find_opcode(op.opcode)->reduces ? SR_OP_INFO_ROUNDED_ONCE : 0),
                         .scratch_bytes = scratch_of_gloo(op) * sdk::dtype_size(op.dtype)};
    }
    return sdk::OpInfo{.flags = SR_OP_INFO_ASYNC | sdk::rounding_flags(op, group_size),
                       .scratch_bytes = scratch_bytes_of(op, group_size)};
  }

  void open(const sdk::Config& config) {
    config_ = config;
    gloo::transport::tcp::attr address;
    // An empty name would mean the machine's own name, whose address may not be reachable from other machines.
    address.hostname = config.address.empty() ? "127.0.0.1" : config.address;
    if (!is_loopback(address.hostname) && !config.options.boolean("trusted")) {
      throw sdk::InvalidJob("its ranks would listen at " + address.hostname +
                            ", and Gloo neither encrypts what they send nor finds out who connects: use transport tcp, "
                            "or, where everyone on that network is trusted, [transport.gloo] trusted = true");
    }
    const NoSigpipe no_sigpipe;  // the device's thread inherits it
    // It inherits SCHED_BATCH, too: waking it preempts no thread. It polls again and again as long as another thread
    // uses a connection that has data. On a busy machine it would preempt that other thread, and then poll for a whole
    // time slice. A policy that the user has chosen is left as it is.
    const sched_param none = {};
    const bool is_batch = sched_getscheduler(0) == SCHED_OTHER && sched_setscheduler(0, SCHED_BATCH, &none) == 0;
    std::optional<std::string> failure;
    try {
      device_ = gloo::transport::tcp::CreateDevice(address);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    if (is_batch) {
      sched_setscheduler(0, SCHED_OTHER, &none);
    }
    if (failure) {
      throw TransportError(SR_INVALID, "cannot listen on '" + address.hostname + "': " + *failure);
    }
  }

  void close() { device_.reset(); }

  std::uint64_t wire_bytes() const { return wire_bytes_.load(std::memory_order_relaxed); }

  std::uint64_t mem_register(const sr_memory&) { return ++registrations_; }
  void mem_deregister(std::uint64_t) {}

  std::unique_ptr<sdk::Group> group(const sdk::GroupSpec& spec) {
    if (spec.size() == 1) {
      return std::make_unique<sdk::LoneGroup>();
    }
    const NoSigpipe no_sigpipe;
    return std::make_unique<GlooGroup>(config_, spec, device_, generations_[{spec.id, spec.members}]++, wire_bytes_);
  }

 private:
  sdk::Config config_;
  Device device_;
  std::map<std::pair<std::uint64_t, std::vector<std::uint32_t>>, std::uint64_t> generations_;
  std::atomic<std::uint64_t> wire_bytes_ = 0;
  std::uint64_t registrations_ = 0;
};

}  // namespace
}  // namespace shardrun::gloo_transport

SHARDRUN_EXPORT_TRANSPORT(shardrun::gloo_transport::GlooTransport, "gloo", "2.0")
