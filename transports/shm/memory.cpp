#include "transports/shm/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <shardrun/sdk/transport/op.hpp>
#include <string>
#include <utility>

namespace shardrun::shm_transport {
namespace {

using sdk::TransportError;

[[noreturn]] void fail(std::int32_t status, const std::string& what) {
  throw TransportError(status, what + ": " + std::strerror(errno));
}

/// The cache line before each segment counts its holders.
constexpr std::size_t head_bytes = 64;

}  // namespace

Mapping::Mapping(Descriptor descriptor, std::size_t bytes) : descriptor_(std::move(descriptor)), bytes_(bytes) {
  struct stat status {};
  void* mapped =
      bytes == 0 ? nullptr : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.number(), 0);
  if (mapped == MAP_FAILED) {
    fail(SR_INTERNAL, "shared memory of " + std::to_string(bytes) + " bytes cannot be mapped");
  }
  data_ = static_cast<std::byte*>(mapped);
  if (fstat(descriptor_.number(), &status) == 0) {
    inode_ = status.st_ino;
  }
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

std::unique_ptr<Mapping> Mapping::create(std::size_t bytes) {
  Descriptor descriptor(memfd_create("shardrun-shm", MFD_CLOEXEC));
  if (descriptor.number() < 0) {
    fail(SR_INTERNAL, "memfd_create");
  }
  if (ftruncate(descriptor.number(), static_cast<off_t>(bytes)) != 0) {
    fail(SR_INTERNAL, "shared memory of " + std::to_string(bytes) + " bytes");
  }
  return std::unique_ptr<Mapping>(new Mapping(std::move(descriptor), bytes));
}

/// Uses /proc/PID/fd instead of a socket that passes descriptors: no process has to listen, and the kernel checks that
/// both processes belong to one user.
std::unique_ptr<Mapping> Mapping::open(pid_t pid, int descriptor, std::uint64_t inode) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  Descriptor opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (opened.number() < 0) {
    fail(errno == ENOENT ? SR_PEER_LOST : SR_INTERNAL, "memory of process " + std::to_string(pid) + " (" + path + ")");
  }
  struct stat status {};
  if (fstat(opened.number(), &status) != 0 || status.st_ino != inode) {
    throw TransportError(SR_PEER_LOST, "process " + std::to_string(pid) + " has another file as descriptor " +
                                           std::to_string(descriptor) + " than it announced: it is not the peer");
  }
  std::unique_ptr<Mapping> mapping(new Mapping(std::move(opened), static_cast<std::size_t>(status.st_size)));
  mapping->close_descriptor();
  return mapping;
}

std::shared_ptr<std::byte> PeerMemory::resolve(const MemoryRef& ref) {
  if (ref.bytes == 0) {
    return nullptr;
  }
  std::shared_ptr<Mapping> mapping = mapping_of(ref);
  if (ref.offset > mapping->bytes() || ref.bytes > mapping->bytes() - ref.offset) {
    throw TransportError(SR_INTERNAL, "process " + std::to_string(ref.pid) + " announced " + std::to_string(ref.bytes) +
                                          " bytes that its memory does not have");
  }
  std::byte* const data = mapping->data() + ref.offset;
  return {std::move(mapping), data};
}

std::shared_ptr<Mapping> PeerMemory::mapping_of(const MemoryRef& ref) {
  const FileId key = {ref.pid, ref.descriptor, ref.inode};
  const std::lock_guard lock(mutex_);
  if (const auto found = mappings_.find(key); found != mappings_.end()) {
    if (std::shared_ptr<Mapping> mapping = found->second.lock()) {
      return mapping;
    }
  }
  std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Mapping> mapping = Mapping::open(ref.pid, ref.descriptor, ref.inode);
  mappings_.emplace(key, mapping);
  return mapping;
}

std::optional<std::uint64_t> SegmentPool::assign(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(head_bytes + bytes);
  std::vector<std::uint64_t>& same_size = by_size_[size];
  auto found = std::find_if(same_size.begin(), same_size.end(), [&](std::uint64_t offset) {
    return holders_of(offset).load(std::memory_order_acquire) == 0;
  });
  if (found == same_size.end()) {
    if (size > bytes_ - used_) {
      return std::nullopt;
    }
    found = same_size.insert(same_size.end(), used_);
    used_ += size;
  }
  holders_of(*found).store(members_);
  return *found;
}

OpSegment SegmentPool::hold(std::uint64_t offset) const noexcept { return {holders_of(offset), data(offset)}; }

std::byte* SegmentPool::data(std::uint64_t offset) const noexcept { return memory_ + offset + head_bytes; }

std::atomic<std::uint32_t>& SegmentPool::holders_of(std::uint64_t offset) const noexcept {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_ + offset);
}

}  // namespace shardrun::shm_transport
