#include "tests/support/cuda/fake_nccl_world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <utility>

namespace shardrun::test::fake_nccl {
namespace {

constexpr std::size_t page = 4096;

std::size_t rounded(std::size_t bytes) { return (bytes + page - 1) / page * page; }

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

}  // namespace shardrun::test::fake_nccl
