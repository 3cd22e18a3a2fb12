#include "tests/support/cuda/fake_nccl_works.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <shardrun/sdk/transport/op.hpp>
#include <shardrun/sdk/transport/reduce.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace shardrun::test::fake_nccl {
namespace {

constexpr std::size_t page = 4096;

std::size_t rounded(std::size_t bytes) { return (bytes + page - 1) / page * page; }

std::uint32_t dtype_of(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclFloat32: return SR_DTYPE_F32;
    case ncclFloat64: return SR_DTYPE_F64;
    case ncclFloat16: return SR_DTYPE_F16;
    case ncclBfloat16: return SR_DTYPE_BF16;
    case ncclInt8: return SR_DTYPE_I8;
    case ncclInt32: return SR_DTYPE_I32;
    case ncclUint32: return SR_DTYPE_U32;
    case ncclInt64: return SR_DTYPE_I64;
    case ncclUint64: return SR_DTYPE_U64;
    default: return SR_DTYPE_U8;
  }
}

std::uint32_t reduction_of(ncclRedOp_t reduction) {
  switch (reduction) {
    case ncclProd: return SR_REDUCE_PRODUCT;
    case ncclMin: return SR_REDUCE_MIN;
    case ncclMax: return SR_REDUCE_MAX;
    default: return SR_REDUCE_SUM;
  }
}

std::uint64_t hash_of(const void* data, std::size_t bytes) {
  return bytes == 0 ? 0 : std::hash<std::string_view>{}({static_cast<const char*>(data), bytes});
}

bool is_between_two(Kind kind) { return kind == Kind::send || kind == Kind::recv; }

}  // namespace

struct World::Header {
  std::atomic<std::uint32_t> joined;
  std::atomic<std::uint32_t> failing;  ///< 1: a member is writing the reason; 2: it is written
  char why[600];
  int devices[most_members];
  std::size_t hosts[most_members];
};

World::World(std::string place, std::uint32_t members, std::uint32_t rank, int device)
    : place_(std::move(place)), members_(members), number_(std::hash<std::string>{}(place_)) {
  const std::size_t channels = members + std::size_t{members} * members;
  const std::size_t before = rounded(sizeof(Header) + channels * sizeof(Channel));
  bytes_ = before + channels * most_bytes;  // the system allocates only pages that are used
  const int file = open(place_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || members > most_members || ftruncate(file, static_cast<off_t>(bytes_)) != 0) {
    throw std::runtime_error("fake NCCL: no file " + place_);
  }
  void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (mapped == MAP_FAILED) {
    throw std::runtime_error("fake NCCL: " + place_ + " cannot be mapped");
  }
  header_ = static_cast<Header*>(mapped);
  channels_ = reinterpret_cast<Channel*>(static_cast<std::byte*>(mapped) + sizeof(Header));
  data_ = static_cast<std::byte*>(mapped) + before;
  header_->devices[rank] = device;
  const char* const host = std::getenv("NCCL_HOSTID");
  header_->hosts[rank] = std::hash<std::string>{}(host == nullptr ? "" : host);
  if (++header_->joined == members_) {
    unlink(place_.c_str());
  }
}

World::~World() {
  if (!is_complete()) {
    unlink(place_.c_str());
  }
  munmap(header_, bytes_);
}

bool World::is_complete() const noexcept { return header_->joined >= members_; }

bool World::shares_a_device() const noexcept {
  for (std::uint32_t a = 0; a < members_; ++a) {
    for (std::uint32_t b = 0; b < a; ++b) {
      if (device_of(a) == device_of(b)) {
        return true;
      }
    }
  }
  return false;
}

bool World::shares_a_device_of_a_host() const noexcept {
  for (std::uint32_t a = 0; a < members_; ++a) {
    for (std::uint32_t b = 0; b < a; ++b) {
      if (device_of(a) == device_of(b) && header_->hosts[a] == header_->hosts[b]) {
        return true;
      }
    }
  }
  return false;
}

int World::device_of(std::uint32_t member) const noexcept { return header_->devices[member]; }

std::byte* World::data(const Channel& channel) const noexcept {
  return data_ + static_cast<std::size_t>(&channel - channels_) * most_bytes;
}

void World::fail(const std::string& why) noexcept {
  std::fprintf(stderr, "fake NCCL: %s\n", why.c_str());
  std::uint32_t none = 0;
  if (header_->failing.compare_exchange_strong(none, 1)) {
    std::snprintf(header_->why, sizeof(header_->why), "%s", why.c_str());
    header_->failing = 2;
  }
}

bool World::has_failed() const noexcept { return header_->failing == 2; }

std::string World::failure() const { return has_failed() ? header_->why : ""; }

std::size_t size_of(ncclDataType_t dtype) { return sdk::dtype_size(dtype_of(dtype)); }

std::string text_of(const Call& call) {
  const std::string count = " " + std::to_string(call.count);
  const std::string peer = std::to_string(call.peer);
  switch (call.kind) {
    case Kind::send: return "send" + count + " to " + peer;
    case Kind::recv: return "recv" + count + " from " + peer;
    case Kind::broadcast: return "broadcast" + count + " of " + peer;
    case Kind::reduce: return "reduce" + count + " at " + peer;
    case Kind::all_reduce: return "all_reduce" + count;
    case Kind::all_gather: return "all_gather" + count;
    case Kind::reduce_scatter: return "reduce_scatter" + count;
  }
  return "?";
}

std::size_t bytes_sent(const Call& call, std::uint32_t rank, std::uint32_t members) {
  const std::size_t block = call.count * size_of(call.dtype);
  switch (call.kind) {
    case Kind::recv: return 0;
    case Kind::broadcast: return static_cast<int>(rank) == call.peer ? block : 0;
    case Kind::reduce_scatter: return block * members;
    default: return block;
  }
}

std::size_t bytes_received(const Call& call, std::uint32_t rank, std::uint32_t members) {
  const std::size_t block = call.count * size_of(call.dtype);
  switch (call.kind) {
    case Kind::send: return 0;
    case Kind::reduce: return static_cast<int>(rank) == call.peer ? block : 0;
    case Kind::all_gather: return block * members;
    default: return block;
  }
}

Works::Works(std::shared_ptr<World> world, std::shared_ptr<std::atomic<bool>> is_aborted, std::uint32_t rank,
             std::vector<Call> calls)
    : world_(std::move(world)), is_aborted_(std::move(is_aborted)), rank_(rank), calls_(std::move(calls)) {}

Channel& Works::own_channel(const Call& call) const {
  const auto peer = static_cast<std::uint32_t>(call.peer);
  return call.kind == Kind::send   ? world_->link(rank_, peer)
         : call.kind == Kind::recv ? world_->link(peer, rank_)
                                   : world_->to_all(rank_);
}

bool Works::can_post(const Call& call) const {
  if (call.is_posted) {
    return false;
  }
  const Channel& channel = own_channel(call);
  const auto has_taken = [&](std::uint32_t member) { return channel.taken[member] + 1 >= call.number; };
  if (is_between_two(call.kind)) {
    return call.kind == Kind::recv ||
           (channel.posted + 1 == call.number && has_taken(static_cast<std::uint32_t>(call.peer)));
  }
  for (std::uint32_t member = 0; member < world_->size(); ++member) {
    if (!has_taken(member)) {
      return false;
    }
  }
  return channel.posted + 1 == call.number;
}

bool Works::can_take(const Call& call) const {
  if (!call.is_posted || call.is_done) {
    return false;
  }
  const Channel& own = own_channel(call);
  if (call.kind == Kind::send) {
    return own.taken[call.peer] >= call.number;
  }
  if (call.kind == Kind::recv) {
    return own.posted >= call.number && own.taken[rank_] + 1 == call.number;
  }
  for (std::uint32_t member = 0; member < world_->size(); ++member) {
    if (world_->to_all(member).posted < call.number) {
      return false;
    }
  }
  return true;
}

bool Works::can_go_on() {
  return *is_aborted_ || world_->has_failed() ||
         std::ranges::any_of(calls_, [&](const Call& call) { return can_post(call) || can_take(call); });
}

bool Works::go_on() {
  for (bool moves = true; moves && !*is_aborted_ && !world_->has_failed();) {
    moves = false;
    for (Call& call : calls_) {
      if (can_post(call)) {
        post(call);
        moves = true;
      }
      if (can_take(call)) {
        take(call);
        moves = true;
      }
    }
  }
  return *is_aborted_ || world_->has_failed() || std::ranges::all_of(calls_, &Call::is_done);
}

void Works::post(Call& call) {
  const std::size_t given = bytes_sent(call, rank_, world_->size());
  const auto* const from = static_cast<const std::byte*>(call.send);
  auto* const to = static_cast<std::byte*>(call.recv);
  const std::size_t received = bytes_received(call, rank_, world_->size());
  for (std::size_t i = 0; i < received; ++i) {
    if (given == 0 || to + i < from || to + i >= from + given) {
      to[i] = std::byte{0xA5};
    }
  }
  call.hash = hash_of(from, given);
  call.is_posted = true;
  if (call.kind == Kind::recv) {
    return;
  }
  if (given > World::most_bytes) {
    world_->fail(text_of(call) + " has more bytes than this fake moves");
    return;
  }
  Channel& channel = own_channel(call);
  if (given != 0) {
    std::memcpy(world_->data(channel), from, given);
  }
  channel.description = {.kind = static_cast<std::uint32_t>(call.kind),
                         .dtype = static_cast<std::uint32_t>(call.dtype),
                         .reduction = static_cast<std::uint32_t>(call.reduction),
                         .root = static_cast<std::uint32_t>(call.peer),
                         .count = call.count,
                         .bytes = given,
                         .device = world_->device_of(rank_),
                         .orders = {}};
  std::copy_n(call.orders.begin(), std::min(call.orders.size(), most_orders), channel.description.orders);
  channel.posted = call.number;
}

void Works::take(Call& call) {
  if (call.hash != hash_of(call.send, bytes_sent(call, rank_, world_->size()))) {
    world_->fail("member " + std::to_string(rank_) + ": what " + text_of(call) +
                 " gives was changed while it was under way");
    return;
  }
  if (call.kind == Kind::recv) {
    Channel& channel = own_channel(call);
    const std::size_t bytes = call.count * size_of(call.dtype);
    if (channel.description.bytes != bytes) {
      world_->fail("member " + std::to_string(rank_) + " receives " + std::to_string(bytes) + " bytes, and member " +
                   std::to_string(call.peer) + " sends " + std::to_string(channel.description.bytes));
      return;
    }
    if (!is_in_order(call, channel.description, static_cast<std::uint32_t>(call.peer))) {
      return;
    }
    std::memcpy(call.recv, world_->data(channel), bytes);
    channel.taken[rank_] = call.number;
  } else if (call.kind != Kind::send) {
    take_collective(call);
  }
  call.is_done = true;
}

bool Works::is_same(const Call& call, const Description& other, std::uint32_t member) const {
  if (other.kind != static_cast<std::uint32_t>(call.kind) || other.dtype != static_cast<std::uint32_t>(call.dtype) ||
      other.reduction != static_cast<std::uint32_t>(call.reduction) || other.count != call.count ||
      other.root != static_cast<std::uint32_t>(call.peer)) {
    world_->fail("member " + std::to_string(rank_) + " does " + text_of(call) + ", and member " +
                 std::to_string(member) + " another collective, of " + std::to_string(other.count));
    return false;
  }
  return is_in_order(call, other, member);
}

bool Works::is_in_order(const Call& call, const Description& other, std::uint32_t member) const {
  for (const Description::Order& own : call.orders) {
    for (const Description::Order& its : other.orders) {
      if (own.world == its.world && own.device == other.device && its.device == world_->device_of(rank_) &&
          own.given != its.given) {
        world_->fail("member " + std::to_string(rank_) + " was given " + text_of(call) + " after " +
                     std::to_string(own.given) + " calls of another communicator that concern both, and member " +
                     std::to_string(member) + " after " + std::to_string(its.given) +
                     ": they may wait for each other forever");
        return false;
      }
    }
  }
  return true;
}

/// Adds up the members' data, starting with the last member, because NCCL promises no order.
std::vector<std::byte> Works::reduced(const Call& call, std::size_t block) const {
  const std::size_t bytes = call.count * size_of(call.dtype);
  const std::uint32_t n = world_->size();
  const auto of = [&](std::uint32_t member) { return world_->data(world_->to_all(member)) + block * bytes; };
  std::vector<std::byte> sum(of(n - 1), of(n - 1) + bytes);
  for (std::uint32_t member = 0; member + 1 < n; ++member) {
    sdk::reduce(dtype_of(call.dtype), reduction_of(call.reduction), sum.data(), of(member), call.count);
  }
  return sum;
}

void Works::take_collective(Call& call) {
  for (std::uint32_t member = 0; member < world_->size(); ++member) {
    if (!is_same(call, world_->to_all(member).description, member)) {
      return;
    }
  }
  const auto write = [&](const std::vector<std::byte>& result) {
    if (!result.empty()) {
      std::memcpy(call.recv, result.data(), result.size());
    }
  };
  const std::size_t bytes = call.count * size_of(call.dtype);
  switch (call.kind) {
    case Kind::broadcast:
      std::memmove(call.recv, world_->data(world_->to_all(static_cast<std::uint32_t>(call.peer))), bytes);
      break;
    case Kind::reduce:
      if (static_cast<int>(rank_) == call.peer) {
        write(reduced(call, 0));
      }
      break;
    case Kind::all_reduce: write(reduced(call, 0)); break;
    case Kind::reduce_scatter: write(reduced(call, rank_)); break;
    default:
      for (std::uint32_t member = 0; member < world_->size(); ++member) {
        std::memcpy(static_cast<std::byte*>(call.recv) + member * bytes, world_->data(world_->to_all(member)), bytes);
      }
  }
  for (std::uint32_t member = 0; member < world_->size(); ++member) {
    world_->to_all(member).taken[rank_] = call.number;
  }
}

}  // namespace shardrun::test::fake_nccl
