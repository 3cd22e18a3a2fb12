#include "core/bench/measuring.h"

#include <fmt/format.h>
#include <shardrun/transport.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/bench/cases.h"
#include "core/bench/statistics.h"
#include "core/compile/plugins.h"
#include "core/device/apart.h"
#include "core/device/host_memory.h"
#include "core/device/threads.h"
#include "core/run/rank_process.h"
#include "core/runtime/device_queue.h"
#include "plugins/loader/transport.h"

namespace shardrun::bench {
namespace {

using launch::Rank;

/// Seconds added to the timeout of ops, so that the launcher, which can name a silent rank, notices the silence first.
constexpr double silence_margin_s = 2;

int number_in(const std::string& text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// This rank's side of all measurements. The destructor destroys group and transport, in this order, and then the
/// memory that they used.
class Measuring final : private plugins::TransportHost {
 public:
  Measuring(const Settings& settings, Rank& rank, const std::function<int()>& stop_signal)
      : settings_(settings),
        rank_(rank),
        stop_signal_(stop_signal),
        members_(static_cast<std::uint32_t>(settings.ranks)),
        cases_(cases_of(settings)) {}
  ~Measuring() override { rank_.on_abort({}); }  // the callback uses members of this object

  /// Runs all measurements. Returns the exit code.
  int run() {
    connect();
    for (std::size_t number = 0; number < cases_.size(); ++number) {
      if (const int signal = agree_on_stop(number); signal != 0) {
        return 128 + signal;
      }
      const Case& each = cases_[number];
      const ArenaLayout layout = layout_of(each, *transport_, members_, own());
      Sample sample = each.what == What::op ? measure(each, layout) : Sample{};
      if (each.what != What::op) {
        sample.nanoseconds = measure_ceiling(each, number, layout, arena_->data(), rank_);
      }
      sample.number = number;
      rank_.message(sample_message, to_bytes(sample));
    }
    (void)agree_on_stop(cases_.size());  // so that no rank leaves while another needs it
    return 0;
  }

 private:
  [[nodiscard]] bool aborted() const noexcept override { return rank_.aborted().load(std::memory_order_relaxed); }
  void store_set(const std::string& key, std::string value) override { rank_.set(key, value); }
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t deadline) override {
    const Rank::Deadline latest = Rank::Clock::now() + std::chrono::hours(24);
    return rank_.get(key, std::min(Rank::Deadline{std::chrono::nanoseconds(deadline)}, latest));
  }

  [[nodiscard]] std::uint32_t own() const { return static_cast<std::uint32_t>(rank_.rank()); }
  [[nodiscard]] std::int64_t deadline() const {
    return plugins::transport_clock() + static_cast<std::int64_t>((settings_.timeout + silence_margin_s) * 1e9);
  }

  void connect() {
    const launch::RankContext& context = rank_.context();
    transport_.emplace(compile::load_transport(compile::directories_of(settings_.plugins), settings_.transport,
                                               settings_.options, members_));
    allocate(arena_bytes(cases_, *transport_, members_), context.local_rank);
    transport_->open({.rank = own(),
                      .world_size = members_,
                      .local_rank = static_cast<std::uint32_t>(context.local_rank),
                      .local_world_size = static_cast<std::uint32_t>(context.local_world_size),
                      .job = context.run,
                      .address = context.address,
                      .deadline = sdk::Deadline::from_border(deadline()),
                      .secret = rank_.key_for("transport/" + transport_->manifest().name)},
                     *this);
    registration_ =
        transport_->register_memory(arena_->data(), arena_->bytes(), arena_->descriptor(), memory_kind_, unit_);
    std::vector<std::uint32_t> everybody(members_);
    for (std::uint32_t member = 0; member < members_; ++member) {
      everybody[member] = member;
    }
    group_.emplace(transport_->group({.rank = own(),
                                      .members = everybody,
                                      .name = "bench",
                                      .id = 1,
                                      .deadline = sdk::Deadline::from_border(deadline())}));
    rank_.on_abort([this](const std::string& reason) { group_->abort(reason); });
  }

  /// Allocates the arena, in which ops work, and the host memory in which results are compared. If the host can address
  /// the arena, both are the same memory.
  void allocate(std::uint64_t bytes, int local_rank) {
    compared_ = std::make_shared<device::HostMemory>(bytes);
    arena_ = compared_;
    if (settings_.device.empty()) {
      return;
    }
    const device::Device& device = device::Device::find(settings_.device);
    device.use_unit(static_cast<std::size_t>(local_rank) % device.units().size());
    const device::DeviceApart& apart = *device::apart(device);
    memory_kind_ = runtime::kinds_of(apart).memory;
    unit_ = static_cast<std::uint32_t>(apart.unit());
    arena_ = device.allocate(bytes);
    queue_ = device.open_queue(threads_);
  }

  /// Copies the data that ops will read to the arena, if the arena is not the host memory itself.
  void to_arena(const ArenaLayout& layout) {
    if (queue_ != nullptr) {
      queue_->write({compared_->data(), layout.scratch}, arena_->data());
      queue_->finish();
    }
  }
  /// Copies the data that ops have written back to host memory, if the arena is not the host memory itself.
  void from_arena(const ArenaLayout& layout) {
    if (queue_ != nullptr) {
      queue_->read(arena_->data(), {compared_->data(), layout.scratch});
      queue_->finish();
    }
  }

  /// The signal that asked a rank to stop, the same on all ranks; 0: none. If the job is to be suspended, all ranks
  /// wait here, and none continues before all have come.
  int agree_on_stop(std::size_t number) {
    const std::string key = fmt::format("case/{}", number);
    int signal = std::max(rank_.stop_signal(), stop_signal_());
    if (rank_.rank() == 0) {
      for (int other = 1; other < rank_.world_size(); ++other) {
        signal = std::max(signal, number_in(rank_.get(fmt::format("{}/{}", key, other), Rank::no_deadline)));
      }
      rank_.set(key, fmt::format("{}", 2 * signal + (rank_.pause_asked() ? 1 : 0)));
    } else {
      rank_.set(fmt::format("{}/{}", key, rank_.rank()), fmt::format("{}", signal));
    }
    const int agreed = number_in(rank_.get(key, Rank::no_deadline));
    if (agreed == 1) {
      rank_.pause();
    }
    return agreed / 2;
  }

  [[nodiscard]] plugins::TransportOp prepare(const Case& each, const ArenaLayout& layout) {
    std::vector<sdk::OpSpec> requests = specs_of(each, members_, own(), next_id_);
    next_id_ += members_;
    std::uint64_t scratch = layout.scratch;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].opcode != SR_OP_RECV && layout.send_bytes > 0) {
        requests[i].send = buffer(layout.send, layout.send_bytes);
      }
      if (requests[i].opcode != SR_OP_SEND && layout.recv_bytes > 0) {
        requests[i].recv = buffer(layout.recv, layout.recv_bytes);
      }
      if (layout.scratch_bytes[i] > 0) {
        requests[i].scratch = buffer(scratch, layout.scratch_bytes[i]);
        scratch += (layout.scratch_bytes[i] + 63) / 64 * 64;
      }
    }
    return group_->prepare(requests, deadline());
  }

  [[nodiscard]] sdk::Buffer buffer(std::uint64_t offset, std::uint64_t bytes) {
    return {.data = arena_->data() + offset,
            .bytes = bytes,
            .registration = registration_,
            .kind = memory_kind_,
            .device = unit_};
  }

  /// Times an op on whatever data its earlier runs have left. One run before and one run after are checked.
  Sample measure(const Case& each, const ArenaLayout& layout) {
    plugins::TransportOp op = prepare(each, layout);
    const auto once = [&] {
      op.start(deadline());
      if (!op.wait(deadline())) {
        throw Error(ErrorCode::timeout,
                    fmt::format("{}: it is past its deadline, and the transport has not ended it", describe(each)));
      }
    };
    Sample sample;
    const auto checked = [&](std::uint32_t round) {
      fill(each, members_, own(), round, layout, compared_->data());
      to_arena(layout);
      once();
      from_arena(layout);
      sample.wrong += count_wrong(each, members_, own(), round, layout, compared_->data());
    };
    checked(0);
    sample.nanoseconds = timed(each, once);
    checked(1);
    return sample;
  }

  const Settings& settings_;
  Rank& rank_;
  const std::function<int()>& stop_signal_;
  std::uint32_t members_;
  std::vector<Case> cases_;
  std::uint64_t next_id_ = 1;
  std::uint64_t registration_ = 0;
  std::uint32_t memory_kind_ = SR_MEMORY_HOST;
  std::uint32_t unit_ = 0;
  device::Threads threads_{1};
  std::shared_ptr<const device::Memory> compared_;
  std::shared_ptr<const device::Memory> arena_;
  std::unique_ptr<device::Queue> queue_;  ///< null: the host can address the arena
  std::optional<plugins::Transport> transport_;
  std::optional<plugins::TransportGroup> group_;
};

}  // namespace

std::string to_bytes(const Sample& sample) {
  std::string bytes(2 * sizeof(std::uint64_t) + sample.nanoseconds.size() * sizeof(double), '\0');
  std::memcpy(bytes.data(), &sample.number, sizeof(sample.number));
  std::memcpy(bytes.data() + sizeof(std::uint64_t), &sample.wrong, sizeof(sample.wrong));
  std::memcpy(bytes.data() + 2 * sizeof(std::uint64_t), sample.nanoseconds.data(),
              sample.nanoseconds.size() * sizeof(double));
  return bytes;
}

Sample sample_of(std::string_view bytes) {
  constexpr std::size_t head = 2 * sizeof(std::uint64_t);
  if (bytes.size() < head || (bytes.size() - head) % sizeof(double) != 0) {
    throw Error(ErrorCode::internal, fmt::format("a sample of {} bytes makes no sense", bytes.size()));
  }
  Sample sample;
  std::memcpy(&sample.number, bytes.data(), sizeof(sample.number));
  std::memcpy(&sample.wrong, bytes.data() + sizeof(std::uint64_t), sizeof(sample.wrong));
  sample.nanoseconds.resize((bytes.size() - head) / sizeof(double));
  std::memcpy(sample.nanoseconds.data(), bytes.data() + head, bytes.size() - head);
  return sample;
}

int measure_as_rank(const Settings& settings, const launch::RankContext& context,
                    const std::function<int()>& stop_signal) {
  // How long to wait until the first rank's process has reported the results. Some launchers end all processes once one
  // has ended.
  constexpr std::chrono::seconds longest_wait_for_first{30};
  constexpr std::chrono::minutes longest_join{5};
  // Declared outside of `attempt`, so that this rank's report comes before those of other ranks about the connection
  // that ends.
  std::unique_ptr<Rank> rank;
  std::optional<Measuring> measuring;
  const auto await_first = [&] {
    if (context.is_hosted && context.rank != 0) {
      rank->await_end(Rank::Clock::now() + longest_wait_for_first);
    }
  };
  const auto fail = [&](launch::FailureKind kind, const std::string& text, std::optional<int> awaited) {
    const bool is_noted = rank != nullptr && rank->fail(kind, text, awaited);
    if (is_noted) {
      await_first();
    } else if (context.is_hosted) {
      write_to_standard_error(fmt::format("shardrun: rank {}: {}\n", context.rank, text));
    } else if (rank == nullptr) {
      write_to_standard_error(text + "\n");
    }
  };
  const auto attempt = [&] {
    rank = std::make_unique<Rank>(context, to_text(settings),
                                  context.is_hosted ? Rank::Clock::now() + longest_join : Rank::no_deadline);
    rank->meet();
    measuring.emplace(settings, *rank, stop_signal);
    const int code = measuring->run();
    measuring.reset();
    rank->goodbye(Rank::no_deadline);
    await_first();
    return code;
  };
  return run::exit_code_of(attempt, fail);
}

}  // namespace shardrun::bench
