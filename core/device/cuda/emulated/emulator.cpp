#include "core/device/cuda/emulated/emulator.h"

#include <cxxabi.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/device/cuda/block.h"

#if defined(SHARDRUN_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

namespace shardrun::device::cuda::emulated {

namespace {

using boost::context::fiber;

#if defined(SHARDRUN_ASAN)
constexpr std::size_t stack_bytes = 512 * 1024;  // instrumented code needs more than other code
#else
constexpr std::size_t stack_bytes = 128 * 1024;
#endif

/// The largest number of bytes that a lane gives in one exchange: its fragments of two matrices.
constexpr std::size_t most_given_bytes = 24;

/// Thrown in waiting threads of a block when another thread has failed, so that their stacks unwind.
struct Abandoned {};

/// Tells AddressSanitizer about switches between stacks.
struct StackSwitch {
#if defined(SHARDRUN_ASAN)
  /// `is_last`: control never returns to the stack that is left.
  void leave_for(const void* bottom, std::size_t size, bool is_last = false) {
    __sanitizer_start_switch_fiber(is_last ? nullptr : &own_, bottom, size);
  }
  /// Stores the stack from which control came.
  void arrive(const void** bottom, std::size_t* size) { __sanitizer_finish_switch_fiber(own_, bottom, size); }

 private:
  void* own_ = nullptr;
#else
  void leave_for(const void*, std::size_t, bool = false) {}
  void arrive(const void**, std::size_t*) {}
#endif
};

/// A fiber's stack, with an inaccessible page below it.
class Stack {
 public:
  Stack() {
    void* const range =
        mmap(nullptr, guard_bytes + stack_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED ||
        mprotect(static_cast<std::byte*>(range) + guard_bytes, stack_bytes, PROT_READ | PROT_WRITE) != 0) {
      throw Error(ErrorCode::io, "cuda-emulated: no memory for the stack of a fiber");
    }
    begin_ = static_cast<std::byte*>(range);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  ~Stack() { munmap(begin_, guard_bytes + stack_bytes); }

  [[nodiscard]] std::byte* bottom() const noexcept { return begin_ + guard_bytes; }

 private:
  static constexpr std::size_t guard_bytes = 4096;
  std::byte* begin_ = nullptr;
};

/// An allocator for boost::context that frees nothing, because another object owns the stack.
struct KeptStack {
  void deallocate(boost::context::stack_context&) const noexcept {}
};

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

std::string to_string(Where where) { return fmt::format("{}:{}", where.file, where.line); }

bool are_same(Where a, Where b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

enum class State : std::uint8_t { fresh, ready, at_block_barrier, at_exchange, ended };

class Fiber;
class Running;

}  // namespace

struct Strand {
  Running* running = nullptr;
  int thread = 0;
  State state = State::fresh;
  Fiber* fiber = nullptr;  ///< the fiber on which it runs; null before it begins and after it ends
  Where where = {};
  int exchanges = 0;  ///< number of exchanges so far
};

namespace {

/// A fiber that runs threads of blocks, one after the other.
class Fiber {
 public:
  Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  /// REQUIRES: no thread is running on it.
  ~Fiber() {
    strand_ = nullptr;
    resume();
  }

  /// Runs the thread until it waits or ends.
  void run(Strand& strand) {
    strand_ = &strand;
    resume();
  }
  /// Called on the fiber. Returns control to the caller of run().
  void suspend() {
    switch_.leave_for(caller_bottom_, caller_size_);
    caller_ = std::move(caller_).resume();
    switch_.arrive(&caller_bottom_, &caller_size_);
  }

 private:
  void resume() {
    StackSwitch here;
    here.leave_for(stack_.bottom(), stack_bytes);
    fiber_ = std::move(fiber_).resume();
    here.arrive(nullptr, nullptr);
  }
  void work();

  Stack stack_;
  fiber fiber_;
  fiber caller_;
  StackSwitch switch_;
  const void* caller_bottom_ = nullptr;
  std::size_t caller_size_ = 0;
  Strand* strand_ = nullptr;
};

/// The running block, and its launch.
class Running {
 public:
  Running(const Launch& launch, Order order, std::uint64_t seed)
      : launch_(launch), order_(order), random_(seed), strands_(static_cast<std::size_t>(launch.threads)) {
    // The memory has exactly the requested size, so that AddressSanitizer finds accesses outside.
    shared_ = std::make_unique<unsigned char[]>(launch.shared_bytes);
    exchanged_.resize(strands_.size());
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void run_all(std::vector<std::unique_ptr<Fiber>>& idle);

  void start(Strand& strand) {
    try {
      launch_.body(launch_.function, strand, shared_.get());
    } catch (const Abandoned&) {
      // This thread ends because another thread failed. run_all() throws the error of that thread.
    } catch (const Error& error) {
      fail(std::make_exception_ptr(Error(
          error.code(), fmt::format("cuda-emulated: {}, thread {}: {}", name(), strand.thread, error.message()))));
    } catch (...) {
      fail(std::current_exception());
    }
    strand.state = State::ended;
  }
  void wait(Strand& strand, State state, Where where) {
    strand.where = where;
    strand.state = state;
    strand.fiber->suspend();
    if (error_ != nullptr) {
      throw Abandoned{};
    }
  }
  void exchange(Strand& strand, const void* given, void* found, std::size_t bytes, int lane, Where where);
  [[nodiscard]] std::uint32_t ballot(Strand& strand, bool value, Where where);
  void give(Strand& strand, const void* given, std::size_t bytes, Where where);
  [[nodiscard]] const unsigned char* given_by(const Strand& strand, int lane) const noexcept {
    const int other = strand.thread / warp_size * warp_size + lane;
    const auto slot = static_cast<std::size_t>((strand.exchanges - 1) % 2);
    return exchanged_[static_cast<std::size_t>(other)][slot].data();
  }

  [[nodiscard]] const Launch& launch() const noexcept { return launch_; }
  [[nodiscard]] std::int64_t block() const noexcept { return block_; }
  [[nodiscard]] std::string name() const {
    return fmt::format("kernel {}, block {} of {}", demangled(launch_.kernel), block_, launch_.blocks);
  }

 private:
  void run_block(std::int64_t block, std::vector<std::unique_ptr<Fiber>>& idle);
  bool advance(std::vector<std::unique_ptr<Fiber>>& idle);
  void run(Strand& strand, std::vector<std::unique_ptr<Fiber>>& idle);
  bool release();
  bool release_group(std::size_t first, std::size_t count, State state);
  [[nodiscard]] Error deadlock() const;
  void fail(std::exception_ptr error) { error_ = error_ == nullptr ? error : error_; }

  template <typename Number>
  std::vector<Number> numbers(std::int64_t count) {
    std::vector<Number> all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), Number{0});
    if (order_ == Order::reversed) {
      std::ranges::reverse(all);
    } else if (order_ == Order::shuffled) {
      std::ranges::shuffle(all, random_);
    }
    return all;
  }

  const Launch& launch_;
  Order order_;
  std::mt19937_64 random_;
  std::int64_t block_ = 0;
  std::vector<Strand> strands_;
  std::vector<int> threads_;  ///< the order in which threads run
  std::unique_ptr<unsigned char[]> shared_;
  /// The values of each lane in this exchange and in the one before, because a lane can be one exchange ahead of lanes
  /// that still read.
  std::vector<std::array<std::array<unsigned char, most_given_bytes>, 2>> exchanged_;
  std::vector<Fiber*> used_;
  std::exception_ptr error_;
};

Fiber::Fiber() {
  boost::context::stack_context context;
  context.sp = stack_.bottom() + stack_bytes;
  context.size = stack_bytes;
  fiber_ = fiber(std::allocator_arg, boost::context::preallocated(context.sp, context.size, context), KeptStack{},
                 [this](fiber&& caller) {
                   caller_ = std::move(caller);
                   switch_.arrive(&caller_bottom_, &caller_size_);
                   work();
                   switch_.leave_for(caller_bottom_, caller_size_, true);
                   return std::move(caller_);
                 });
}

void Fiber::work() {
  while (strand_ != nullptr) {
    strand_->running->start(*strand_);
    suspend();
  }
}

void Running::run(Strand& strand, std::vector<std::unique_ptr<Fiber>>& idle) {
  if (strand.fiber == nullptr) {
    if (idle.empty()) {
      idle.push_back(std::make_unique<Fiber>());
    }
    strand.fiber = idle.back().release();
    idle.pop_back();
  }
  strand.fiber->run(strand);
  if (strand.state == State::ended) {
    idle.emplace_back(std::exchange(strand.fiber, nullptr));
  }
}

/// Runs every thread that can run, until it waits or ends. Returns whether any could.
bool Running::advance(std::vector<std::unique_ptr<Fiber>>& idle) {
  bool any = false;
  for (const int thread : threads_) {
    Strand& strand = strands_[static_cast<std::size_t>(thread)];
    const bool is_abandoned = error_ != nullptr && strand.state != State::ended && strand.state != State::fresh;
    if (is_abandoned || (error_ == nullptr && (strand.state == State::fresh || strand.state == State::ready))) {
      run(strand, idle);
      any = true;
    }
  }
  return any;
}

/// Lets the threads of a group continue if all wait at one place. Returns whether they do.
bool Running::release_group(std::size_t first, std::size_t count, State state) {
  const auto group = std::span(strands_).subspan(first, count);
  const bool all = std::ranges::all_of(group, [&](const Strand& strand) {
    return strand.state == state && are_same(strand.where, group.front().where);
  });
  if (all) {
    for (Strand& strand : group) {
      strand.state = State::ready;
    }
  }
  return all;
}

bool Running::release() {
  if (release_group(0, strands_.size(), State::at_block_barrier)) {
    return true;
  }
  bool any = false;
  for (std::size_t first = 0; first < strands_.size(); first += warp_size) {
    any = release_group(first, warp_size, State::at_exchange) || any;
  }
  return any;
}

Error Running::deadlock() const {
  std::string text;
  std::vector<std::pair<std::string, int>> groups;
  for (const Strand& strand : strands_) {
    const std::string what =
        strand.state == State::ended
            ? "ended"
            : fmt::format("{} at {}",
                          strand.state == State::at_exchange ? "exchange within their warp" : "wait for the block",
                          to_string(strand.where));
    const auto known = std::ranges::find(groups, what, &std::pair<std::string, int>::first);
    if (known == groups.end()) {
      groups.emplace_back(what, 1);
    } else {
      ++known->second;
    }
  }
  for (const auto& [what, count] : groups) {
    text += fmt::format("{}{} threads {}", text.empty() ? "" : ", ", count, what);
  }
  return {ErrorCode::internal,
          fmt::format("cuda-emulated: {}: its threads wait in vain: {}; all threads of a block must meet at the same "
                      "barriers, and all of a warp at the same exchanges",
                      name(), text)};
}

void Running::run_block(std::int64_t block, std::vector<std::unique_ptr<Fiber>>& idle) {
  block_ = block;
  std::memset(shared_.get(), 0xFF, launch_.shared_bytes);
  threads_ = numbers<int>(launch_.threads);
  for (std::size_t i = 0; i < strands_.size(); ++i) {
    strands_[i] = {.running = this, .thread = static_cast<int>(i)};
  }
  while (true) {
    while (advance(idle)) {
      if (error_ == nullptr && !release()) {
        break;
      }
    }
    const bool all_ended = std::ranges::all_of(strands_, [](const Strand& s) { return s.state == State::ended; });
    if (error_ != nullptr || all_ended) {
      break;
    }
    fail(std::make_exception_ptr(deadlock()));
  }
}

void Running::run_all(std::vector<std::unique_ptr<Fiber>>& idle) {
  for (const std::int64_t block : numbers<std::int64_t>(launch_.blocks)) {
    run_block(block, idle);
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
  }
}

void Running::exchange(Strand& strand, const void* given, void* found, std::size_t bytes, int lane, Where where) {
  if (lane < 0 || lane >= warp_size) {
    throw Error(ErrorCode::internal, fmt::format("an exchange with lane {}, at {}", lane, to_string(where)));
  }
  give(strand, given, bytes, where);
  std::memcpy(found, given_by(strand, lane), bytes);
}

std::uint32_t Running::ballot(Strand& strand, bool value, Where where) {
  give(strand, &value, sizeof(value), where);
  std::uint32_t bits = 0;
  for (int lane = 0; lane < warp_size; ++lane) {
    bits |= std::uint32_t{*given_by(strand, lane)} << static_cast<unsigned>(lane);
  }
  return bits;
}

void Running::give(Strand& strand, const void* given, std::size_t bytes, Where where) {
  const auto slot = static_cast<std::size_t>(strand.exchanges++ % 2);
  std::memcpy(exchanged_[static_cast<std::size_t>(strand.thread)][slot].data(), given, bytes);
  wait(strand, State::at_exchange, where);
}

struct Settings {
  Order order = Order::forward;
  std::uint64_t seed = 0;
};
thread_local Settings settings;

Enqueue enqueue = nullptr;

}  // namespace

void set_order(Order order, std::uint64_t seed) noexcept { settings = {order, seed}; }

Place place_of(const Strand& strand) noexcept {
  const Launch& launch = strand.running->launch();
  return {strand.thread, launch.threads, strand.running->block(), launch.blocks};
}

void wait_for_block(Strand& strand, Where where) { strand.running->wait(strand, State::at_block_barrier, where); }

void exchange(Strand& strand, const void* given, void* found, std::size_t bytes, int lane, Where where) {
  strand.running->exchange(strand, given, found, bytes, lane, where);
}

std::uint32_t ballot(Strand& strand, bool value, Where where) { return strand.running->ballot(strand, value, where); }

void give(Strand& strand, const void* given, std::size_t bytes, Where where) {
  strand.running->give(strand, given, bytes, where);
}

const unsigned char* given_by(const Strand& strand, int lane) noexcept {
  return strand.running->given_by(strand, lane);
}

void require_shared(const Strand& strand, std::size_t bytes) {
  const std::size_t held = strand.running->launch().shared_bytes;
  if (bytes > held) {
    throw Error(ErrorCode::internal,
                fmt::format("the block uses {} bytes of shared memory, but was launched with {}", bytes, held));
  }
}

void fail_shared_index(int index, int count) {
  throw Error(ErrorCode::internal, fmt::format("index {} of an array of {} elements in shared memory", index, count));
}

void Copies::add(void* to, const void* from) {
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 || reinterpret_cast<std::uintptr_t>(from) % bytes != 0) {
    throw Error(ErrorCode::internal,
                fmt::format("a copy from {} to {}: addresses must be multiples of {}", from, to, bytes));
  }
  std::memset(to, 0xFF, bytes);
  copies_.push_back({to, from});
}

void Copies::finish() {
  for (const Copy& copy : copies_) {
    std::memcpy(copy.to, copy.from, bytes);
  }
  copies_.clear();
}

void set_enqueue(Enqueue to) noexcept { enqueue = to; }

void run(const Launch& launch) {
  if (launch.stream != nullptr) {
    if (enqueue == nullptr) {
      throw Error(ErrorCode::internal, "cuda-emulated: a kernel is launched on a stream, and nothing runs streams");
    }
    std::vector<std::max_align_t> copy((launch.function_bytes + sizeof(std::max_align_t) - 1) /
                                       sizeof(std::max_align_t));
    std::memcpy(copy.data(), launch.function, launch.function_bytes);
    enqueue(launch.stream, launch.entry, [launch, copy = std::move(copy)] {
      Launch own = launch;
      own.stream = nullptr;
      own.function = copy.data();
      run(own);
    });
    return;
  }
  if (launch.threads <= 0 || launch.threads % warp_size != 0) {
    throw Error(ErrorCode::internal, fmt::format("cuda-emulated: kernel {} is launched with {} threads a block, not a "
                                                 "multiple of {}",
                                                 demangled(launch.kernel), launch.threads, warp_size));
  }
  if (launch.shared_bytes > most_shared_bytes) {
    throw Error(ErrorCode::internal,
                fmt::format("cuda-emulated: kernel {} is launched with {} bytes of shared memory; some GPUs have {}",
                            demangled(launch.kernel), launch.shared_bytes, most_shared_bytes));
  }
  static thread_local std::vector<std::unique_ptr<Fiber>> idle;
  Running(launch, settings.order, settings.seed).run_all(idle);
}

}  // namespace shardrun::device::cuda::emulated
